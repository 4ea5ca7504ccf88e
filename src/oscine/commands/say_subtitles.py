"""`oscine say --subtitles`: the segments of each speech are aligned after it was written."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from oscine.align.aligner import Aligner
from oscine.align.subtitles import subtitle_format, subtitles
from oscine.align.words import TimedWord, written_words
from oscine.commands.say import check_file, check_folder
from oscine.errors import OscineError, RequestError
from oscine.speech.result import Speech

if TYPE_CHECKING:
    from oscine.speech.events import SegmentEnded

console = Console(stderr=True)  # standard output is for results


@dataclass(frozen=True)
class Subtitles:
    """The files to write, and the segments of the speeches so far."""

    aligner: Aligner
    files: list[Path]
    segments: dict[int, list[SegmentEnded]] = field(default_factory=lambda: defaultdict(list))  # by speech

    @classmethod
    def opened(cls, output: Path | None, aligner: Path | None, names: list[str] | None) -> Subtitles | None:
        """None if no subtitles are wanted. `names`: of the files in a folder. Loads the aligner, so that a folder that
        cannot be used is refused before anything is spoken."""
        if output is None:
            if aligner is not None:
                raise RequestError("--aligner is for --subtitles; name the file to write", "subtitles")
            return None
        if aligner is None:
            message = "--subtitles needs --aligner, the folder of a Whisper model in CTranslate2's format"
            raise RequestError(message, "aligner")
        if names is None:
            subtitle_format(output)
            check_file(output, "--subtitles")
        else:
            check_folder(output, "--subtitles")
        process = Aligner(aligner)
        process.start()
        return cls(process, [output] if names is None else [output / f"{name}.srt" for name in names])

    def add(self, speech: int, segment: SegmentEnded) -> None:
        self.segments[speech].append(segment)

    def write(self, speeches: list[Speech], language: str) -> None:
        with self.aligner, console.status("aligning words"):
            for index, (speech, path) in enumerate(zip(speeches, self.files, strict=True)):
                words = [word for segment in self.segments[index] for word in self._align(speech, segment, language)]
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(subtitles(words, subtitle_format(path)), encoding="utf-8")
                except OSError as error:
                    raise OscineError(
                        f"the speech is written, but the subtitles {str(path)!r} are not: {error}"
                    ) from None
                console.print(f"{path}: {len(words)} words", markup=False, highlight=False)

    def _align(self, speech: Speech, segment: SegmentEnded, language: str) -> list[TimedWord]:
        rate_hz = speech.sample_rate
        samples = speech.audio[round(segment.start_s * rate_hz) : round(segment.end_s * rate_hz)]
        text = segment.spoken.spoken if segment.spoken else segment.text
        words = self.aligner.align(samples, rate_hz, text, language.lower())
        return [
            replace(word, start_s=segment.start_s + word.start_s, end_s=segment.start_s + word.end_s)
            for word in (written_words(segment.spoken, words) if segment.spoken else words)
            if word.start_s is not None and word.end_s is not None
        ]
