"""One recording, and an evaluation: a folder with all recordings and their result as JSON. The result keeps texts and
transcripts, so a changed definition of a figure needs no new recordings."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from oscine.errors import RequestError
from oscine_bench.record import Result, read_result, write_result
from oscine_bench.result_schema import ORIGIN, keys
from oscine_eval.audio_quality import DnsmosScores

KIND = "oscine eval"
FORMAT = 2
RESULT = "result.json"
PAGE = "index.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    number: int  # index in the set, take after take
    take: int
    text: str
    seed: int | None  # None: none was sent
    language: str | None  # a code; None: the recognizer detects it
    file: str | None = None  # in the folder of the result; None: there is no audio
    failure: str | None = None
    audio_s: float = 0.0
    finish_reason: str | None = None  # None: the server does not report it
    silence_share: float = 0.0
    clipped_share: float = 0.0
    transcript: str | None = None  # None: not transcribed yet
    dnsmos: DnsmosScores | None = None
    similarity: float | None = None  # to the reference clip


_RECORDINGS = Annotated[list[Recording], msgspec.Meta(min_length=1)]
# The keys that are read again. Other keys are allowed.
_SCHEMA = keys(
    **ORIGIN,
    versions=keys(oscine=str),
    figures=keys(
        target=keys(preset=str, served=list, fields=dict),
        workload=keys(name=str, seed=int),
        concurrency=int,
        transcriber=keys(recognizer=keys(name=str), dnsmos=dict | None, speaker=dict | None) | None,
        reference=dict | None,
        recordings=_RECORDINGS,
    ),
)


@dataclass(frozen=True, slots=True)
class Evaluation:
    folder: Path
    result: Result  # its figures hold everything but the recordings
    recordings: tuple[Recording, ...]

    @property
    def name(self) -> str:
        return str(self.result["name"])

    @property
    def figures(self) -> dict[str, Any]:
        figures: dict[str, Any] = self.result["figures"]
        return figures

    def with_figures(self, **figures: Any) -> Evaluation:
        return replace(self, result={**self.result, "figures": {**self.figures, **figures}})

    def save(self, scores: list[dict[str, Any]]) -> None:
        """`scores`: additional keys of each recording, for readers of the file."""
        each = [asdict(recording) | score for recording, score in zip(self.recordings, scores, strict=True)]
        write_result(self.folder / RESULT, self.with_figures(recordings=each).result)


def read_evaluation(path: Path) -> Evaluation:
    """Reads an evaluation; `path` is the folder, or the result in it."""
    file = path / RESULT if path.is_dir() else path
    result = read_result(file, KIND, FORMAT, "oscine eval run", _SCHEMA)
    recordings = msgspec.convert(result["figures"].pop("recordings"), _RECORDINGS)
    for name in [one.file for one in recordings if one.file is not None]:
        if name != Path(name).name or name in ("", ".."):  # a result from elsewhere must not name files elsewhere
            fault = f"{name!r} is not a file name in its folder"
            raise RequestError(f"{str(file)!r} is not a complete result of `oscine eval run`: {fault}", "path")
    return Evaluation(file.parent, result, tuple(recordings))
