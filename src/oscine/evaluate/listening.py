"""Transcriber hear every recording of a set, and the set knows what was heard."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from oscine.audio import read_clip, resample
from oscine.evaluate.recognizer import RATE_HZ
from oscine.evaluate.recording import Evaluation, Recording
from oscine.evaluate.speakers import cosine
from oscine.evaluate.transcriber import About, Transcriber
from oscine.evaluate.word_error_rate import language_of
from oscine.types import RequestError, Samples


def listen(
    evaluation: Evaluation,
    ears: Transcriber,
    reference: Path | None = None,  # clip of the voice that all recordings should have
    on_heard: Callable[[], None] = lambda: None,
    language: str | None = None,  # by name; None: as it was when they were recorded
) -> Evaluation:
    """What these ears do not tell, such as DNSMOS, stays as others told it before."""
    if language is not None:
        evaluation = in_language(evaluation, language)
    check_languages({one.text: one.language for one in evaluation.recordings}, ears, language)
    true_voice = ears.embed(_sound(reference)) if reference else None
    heard = []
    for recording in evaluation.recordings:
        heard.append(_heard(recording, evaluation.folder, ears, true_voice))
        on_heard()
    about = _together(evaluation.result["figures"]["ears"], ears.about, with_voice=true_voice is not None)
    known = evaluation.knowing(ears=about, **({"reference": _identity(reference)} if reference else {}))
    return replace(known, recordings=tuple(heard))


def in_language(evaluation: Evaluation, name: str) -> Evaluation:
    named = (replace(one, language=language_of(one.text, name)) for one in evaluation.recordings)
    return replace(evaluation, recordings=tuple(named))


def _together(before: About | None, now: About, *, with_voice: bool) -> About:
    """Who told the figures: these ears, and for what they did not judge, those before them."""
    if before is None:
        return now
    about = {**now, "speaker": now["speaker"] if with_voice else before["speaker"]}
    if now["dnsmos"] is None and before["dnsmos"] is not None:
        about["dnsmos"] = before["dnsmos"]
        about.pop("without_dnsmos", None)
    return about


def _heard(recording: Recording, folder: Path, ears: Transcriber, true_voice: list[float] | None) -> Recording:
    if recording.file is None:
        return recording
    said = ears.hear(_sound(folder / recording.file), recording.language)
    near = cosine(said.embedding, true_voice) if said.embedding and true_voice else recording.similarity
    opinions = said.dnsmos if ears.about["dnsmos"] is not None else recording.dnsmos
    return replace(recording, heard=said.transcript, dnsmos=opinions, similarity=near)


def check_languages(languages: Mapping[str, str | None], ears: Transcriber, named: str | None = None) -> None:
    """By text. A recogniser of one language writes anything in it, and the figures would look like figures."""
    known = ears.languages
    foreign = [text for text, one in languages.items() if (one not in known if one else len(known) == 1)]
    if not foreign:
        return
    knows = ", ".join(sorted(known)) if len(known) <= 10 else f"{len(known)} languages"
    who = f"{ears.about['recogniser']['name']} knows {knows}"
    if named and named.lower() != "auto":
        raise RequestError(f"{who}, not {named!r}; give a recogniser of that language with --recogniser", "recogniser")
    raise RequestError(
        f"{who}, and {len(foreign)} of {len(languages)} texts seem to be in another (such as {foreign[0][:40]!r}); "
        "give a recogniser of their language with --recogniser, or name it with --language where it was mistaken",
        "recogniser",
    )


def _sound(path: Path) -> Samples:
    return resample(read_clip(path), RATE_HZ).samples


def _identity(clip: Path) -> dict[str, str]:
    return {"name": clip.name, "sha256": hashlib.sha256(clip.read_bytes()).hexdigest()[:16]}
