"""Transcribes all recordings of an evaluation, and checks first that the recognizer knows their languages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from oscine.audio.clips import read_clip, resample
from oscine.audio.pcm import Samples
from oscine.errors import RequestError
from oscine_eval.recognizer import RATE_HZ
from oscine_eval.recording import Evaluation, Recording
from oscine_eval.speaker_similarity import cosine
from oscine_eval.transcriber import About, Transcriber
from oscine_eval.word_error_rate import language_code


def transcribe_recordings(
    evaluation: Evaluation,
    transcriber: Transcriber,
    reference: Path | None = None,  # a clip of the voice that all recordings should have
    on_transcribed: Callable[[], None] = lambda: None,
    language: str | None = None,  # a name; None: as recorded
) -> Evaluation:
    """Transcribes recordings. DNSMOS and similarity of an earlier transcription stay if this transcriber does not
    measure them."""
    recordings = evaluation.recordings
    if language is not None:
        recordings = tuple(replace(one, language=language_code(one.text, language)) for one in recordings)
    check_languages({one.text: one.language for one in recordings}, transcriber, language)
    voice = transcriber.embed(_read_audio(reference)) if reference else None
    done = []
    for recording in recordings:
        done.append(_transcribe(recording, evaluation.folder, transcriber, voice))
        on_transcribed()
    about = _merge(evaluation.figures["transcriber"], transcriber.about, has_voice=voice is not None)
    known = evaluation.with_figures(transcriber=about, **({"reference": _identify(reference)} if reference else {}))
    return replace(known, recordings=tuple(done))


def _transcribe(recording: Recording, folder: Path, transcriber: Transcriber, voice: list[float] | None) -> Recording:
    if recording.file is None:
        return recording
    found = transcriber.transcribe(_read_audio(folder / recording.file), recording.language)
    return replace(
        recording,
        transcript=found.text,
        dnsmos=found.dnsmos if transcriber.about["dnsmos"] is not None else recording.dnsmos,
        similarity=cosine(found.embedding, voice) if found.embedding and voice else recording.similarity,
    )


def _merge(before: About | None, now: About, *, has_voice: bool) -> About:
    """Joins the models of this transcriber and the earlier ones whose figures stay."""
    if before is None:
        return now
    about = {**now, "speaker": now["speaker"] if has_voice else before["speaker"]}
    if now["dnsmos"] is None and before["dnsmos"] is not None:
        about["dnsmos"] = before["dnsmos"]
        about.pop("without_dnsmos", None)
    return about


def check_languages(languages: Mapping[str, str | None], transcriber: Transcriber, name: str | None = None) -> None:
    """Refuses languages that the recognizer lacks: it transcribes any speech into its own languages, and the figures
    would look valid. `languages`: code by text."""
    known = transcriber.languages
    foreign = [text for text, code in languages.items() if (code not in known if code else len(known) == 1)]
    if not foreign:
        return
    some = ", ".join(sorted(known)) if len(known) <= 10 else f"{len(known)} languages"
    knows = f"{transcriber.about['recognizer']['name']} knows {some}"
    if name and name.lower() != "auto":
        raise RequestError(f"{knows}, not {name!r}; choose another one with --recognizer", "recognizer")
    raise RequestError(
        f"{knows}, but {len(foreign)} of {len(languages)} texts seem to be in another language (such as "
        f"{foreign[0][:40]!r}); choose another one with --recognizer, or name the language with --language",
        "recognizer",
    )


def _read_audio(path: Path) -> Samples:
    return resample(read_clip(path), RATE_HZ).samples


def _identify(clip: Path) -> dict[str, str]:
    return {"name": clip.name, "sha256": hashlib.sha256(clip.read_bytes()).hexdigest()[:16]}
