"""One recording of the set, and the folder that holds all of them with their result. Plain JSON: what was asked, what
came, what was heard. Figures are computed from it, so that a better definition needs no new recordings."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from oscine.bench.record import Result, read_result, write_result
from oscine.bench.shapes import fault_in
from oscine.types import RequestError

KIND = "oscine eval"
FORMAT = 1
RESULT = "result.json"
PAGE = "index.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    number: int  # its place in the set, take after take
    take: int
    text: str
    seed: int | None  # None: none was sent
    language: str | None  # a code; None: the recogniser finds out
    file: str | None = None  # beside the result; None: there is no sound
    failure: str | None = None
    audio_s: float = 0.0
    finish_reason: str | None = None  # where the server told
    silence_share: float = 0.0
    clipped_share: float = 0.0
    heard: str | None = None  # None: nobody listened yet
    dnsmos: dict[str, float] | None = None
    similarity: float | None = None  # to the reference clip


_FIELDS = {one.name for one in fields(Recording)}


@dataclass(frozen=True, slots=True)
class Evaluation:
    folder: Path
    result: Result  # its figures hold everything but the recordings
    recordings: tuple[Recording, ...]

    @property
    def name(self) -> str:
        return str(self.result["name"])

    @property
    def is_heard(self) -> bool:
        return self.result["figures"]["ears"] is not None

    def knowing(self, **figures: Any) -> Evaluation:
        return replace(self, result={**self.result, "figures": {**self.result["figures"], **figures}})

    def save(self, marks: list[dict[str, Any]]) -> None:
        """`marks`: what was made of each recording, for those who read the file."""
        each = [asdict(recording) | mark for recording, mark in zip(self.recordings, marks, strict=True)]
        write_result(self.folder / RESULT, self.knowing(recordings=each).result)


def read_evaluation(path: Path) -> Evaluation:
    """`path`: the folder, or the result in it."""
    file = path / RESULT if path.is_dir() else path
    result = read_result(file, KIND, FORMAT, "oscine eval run")
    if fault := fault_in(result, _RESULT) or _stray_file(result["figures"]["recordings"]):
        raise RequestError(f"{str(file)!r} is no whole result of `oscine eval run`: {fault}", "path")
    each = result["figures"].pop("recordings")
    recordings = tuple(Recording(**{name: one[name] for name in _FIELDS & one.keys()}) for one in each)
    return Evaluation(file.parent, result, recordings)


# What a result must hold, as far as anybody here reads it (bench/shapes.py).
_NUMBER = int | float
_MAY_BE_TEXT = (None, str)
_RECORDING = {
    **dict.fromkeys(("number", "take"), int),
    "text": str,
    "seed": (None, int),
    **dict.fromkeys(("language", "file", "failure", "finish_reason", "heard"), _MAY_BE_TEXT),
    **dict.fromkeys(("audio_s", "silence_share", "clipped_share"), _NUMBER),
    "dnsmos": (None, dict.fromkeys(("ovrl", "sig", "bak", "p808"), _NUMBER)),
    "similarity": (None, _NUMBER),
}
_RESULT = {
    **dict.fromkeys(("name", "date", "commit", "command", "machine"), str),
    "versions": {"oscine": str},
    "figures": {
        "target": {"preset": str, "served": list, "fields": dict},
        "workload": {"name": str, "seed": int},
        "concurrency": int,
        "ears": (None, {"recogniser": {"name": str}, "dnsmos": (None, dict), "speaker": (None, dict)}),
        "reference": (None, dict),
        "recordings": [_RECORDING],
    },
}


def _stray_file(recordings: list[dict[str, Any]]) -> str | None:
    """A result that came from elsewhere names files beside it, and no others."""
    files = [one["file"] for one in recordings if one["file"] is not None]
    stray = next((file for file in files if file != Path(file).name or file in ("", "..")), None)
    return None if stray is None else f"{stray!r} is no file beside it"
