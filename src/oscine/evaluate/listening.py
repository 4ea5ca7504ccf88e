"""Ears hear every recording of a set, and the set knows what was heard."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from oscine.audio import read_clip, resample
from oscine.evaluate.ears import Ears
from oscine.evaluate.recogniser import RATE_HZ
from oscine.evaluate.recording import Evaluation, Recording
from oscine.evaluate.speakers import cosine
from oscine.types import RequestError, Samples


def listen(
    evaluation: Evaluation,
    ears: Ears,
    reference: Path | None = None,  # clip of the voice that all recordings should have
    on_heard: Callable[[], None] = lambda: None,
) -> Evaluation:
    check_languages({one.text: one.language for one in evaluation.recordings}, ears)
    true_voice = ears.embed(_sound(reference)) if reference else None
    heard = []
    for recording in evaluation.recordings:
        heard.append(_heard(recording, evaluation.folder, ears, true_voice))
        on_heard()
    known = evaluation.knowing(ears=ears.about, reference=_identity(reference) if reference else None)
    return replace(known, recordings=tuple(heard))


def _heard(recording: Recording, folder: Path, ears: Ears, true_voice: list[float] | None) -> Recording:
    if recording.file is None:
        return recording
    said = ears.hear(_sound(folder / recording.file), recording.language)
    near = cosine(said.embedding, true_voice) if said.embedding and true_voice else None
    return replace(recording, heard=said.transcript, dnsmos=said.dnsmos, similarity=near)


def check_languages(languages: Mapping[str, str | None], ears: Ears) -> None:
    """By text. A recogniser of one language writes anything in it, and the figures would look like figures."""
    known = ears.languages
    foreign = [text for text, one in languages.items() if (one not in known if one else len(known) == 1)]
    if foreign:
        knows = ", ".join(sorted(known)) if len(known) <= 10 else f"{len(known)} languages"
        raise RequestError(
            f"{ears.about['recogniser']['name']} knows {knows}, and {len(foreign)} of {len(languages)} texts are in "
            f"another (such as {foreign[0][:40]!r}); give a recogniser of their language with --recogniser, or "
            "name the language with --language when recording",
            "recogniser",
        )


def _sound(path: Path) -> Samples:
    return resample(read_clip(path), RATE_HZ).samples


def _identity(clip: Path) -> dict[str, str]:
    return {"name": clip.name, "sha256": hashlib.sha256(clip.read_bytes()).hexdigest()[:16]}
