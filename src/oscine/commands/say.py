"""What `oscine say` does once its options are read: texts to speeches to files, in one process.

Long texts are parted and joined as the server does it. Everything that can be refused is, before minutes are spent.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from oscine.types import FinishReason, OscineError, RequestError, Speech, SpeechRequest, SpokenFrames, VoiceError

if TYPE_CHECKING:
    from oscine.api import Oscine
    from oscine.model.device import Dtype
    from oscine.voice import Voice

console = Console(stderr=True)  # standard output is for results

_BATCH = 8  # parts that are spoken side by side
_STANDARD_OUTPUT = Path("-")


# --- what is asked --------------------------------------------------------------------------------------------------


def asked_texts(text: str | None, file: Path | None) -> list[str]:
    from oscine.prompt.tokenizer import check_text  # here: `--help` needs no tokenizer

    texts = _lines(text, file) if file is not None else [_text(text)]
    for one in texts:
        check_text(one)  # now: loading a model takes time
    return texts


def _lines(text: str | None, file: Path) -> list[str]:
    if text is not None:
        raise RequestError("give the text either as an argument or in --file, not both", "text")
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{str(file)!r} cannot be read as UTF-8 text: {error}", "file") from None
    if not lines:
        raise RequestError(f"{str(file)!r} holds no text", "file")
    return lines


def _text(text: str | None) -> str:
    if text is not None and text != "-":
        return text
    if sys.stdin is None or (text is None and sys.stdin.isatty()):
        raise RequestError("no text; give it as an argument, through standard input, or with --file", "text")
    try:
        return sys.stdin.read().strip()
    except UnicodeDecodeError as error:
        raise RequestError(f"standard input is not text: {error}", "text") from None


def check_clone_options(
    ref_audio: Path | None, ref_text: str | None, x_vector_only: bool, save_voice: Path | None, voice: str | None
) -> None:
    if ref_audio is not None and voice is not None:
        raise RequestError("give either --voice or --ref-audio, not both", "voice")
    for given, option in ((ref_text, "--ref-text"), (x_vector_only, "--x-vector-only"), (save_voice, "--save-voice")):
        if given and ref_audio is None:
            raise RequestError(f"{option} goes with --ref-audio", "ref_audio")


def load(model: str, device: str, dtype: Dtype) -> Oscine:
    with Progress(SpinnerColumn(), TextColumn("loading {task.description}"), BarColumn(), console=console) as bar:
        task = bar.add_task(escape(model), total=None)
        from oscine.api import Oscine  # here, not above: torch takes seconds that `--help` should not

        return Oscine(
            model,
            device=device,
            dtype=dtype,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )


def chosen_voice(
    tts: Oscine, voice: str | None, ref_audio: Path | None, ref_text: str | None, save_voice: Path | None
) -> str | Voice | None:
    from oscine.voice import Voice

    if ref_audio is not None:
        cloned = tts.clone(ref_audio, ref_text)
        if save_voice is not None:
            cloned.save(save_voice)
        return cloned
    is_preset = voice is not None and voice.lower() in tts.voices
    if voice is not None and not is_preset and (voice.endswith(".safetensors") or os.path.isfile(voice)):
        return Voice.load(voice)
    if tts.config.kind == "base":
        named = f"has no preset voices, so {voice!r} cannot be found" if voice else "needs a voice to clone"
        message = f"this Base checkpoint {named}; give a clip with --ref-audio, or a saved voice's file with --voice"
        raise VoiceError(message, "voice")
    return voice


# --- speaking -------------------------------------------------------------------------------------------------------


@dataclass
class _Telling:
    """A text that is spoken in parts and heard as one. Where it is parted, which seed and how many tokens a part gets,
    and how parts are joined: all as in the server's Narration, so that both say the same."""

    request: SpeechRequest  # of the whole text
    parts: list[str]
    spoken: list[Speech] = field(default_factory=list)
    over: bool = False

    @staticmethod
    def of(request: SpeechRequest) -> _Telling:
        from oscine.segmenter import segment_text

        # The seed is drawn here, as all parts have the same one.
        seed = secrets.randbits(63) if request.seed is None else request.seed
        return _Telling(replace(request, seed=seed), segment_text(request.text))

    def next_parts(self) -> list[SpeechRequest]:
        """What may be spoken now: all that is left. Where tokens are counted, a part gets what those before it left."""
        if self.over:
            return []
        tokens, left = self.request.max_new_tokens, self.parts[len(self.spoken) :]
        if tokens is not None:
            left = left[:1]
            if self.spoken:
                tokens = max(2, tokens - sum(len(speech.codes) for speech in self.spoken))
        return [replace(self.request, text=part, max_new_tokens=tokens) for part in left]

    def take(self, speech: Speech) -> None:
        if not self.over:  # or it was spoken beside a part that turned out to be the last
            self.spoken.append(speech)
            self.over = speech.finish_reason == "length" or len(self.spoken) == len(self.parts)

    def joined(self) -> Speech:
        """A single part is the model's sound to the bit."""
        if len(self.parts) == 1:
            return self.spoken[0]
        import numpy as np

        from oscine.audio import pcm16
        from oscine.narration import SegmentJoiner

        joint = SegmentJoiner(self.spoken[0].sample_rate)
        pcm: list[bytes] = []
        for number, speech in enumerate(self.spoken, 1):
            pcm.append(joint.push(pcm16(speech.audio).astype("<i2").tobytes()))
            pcm.append(joint.end_segment(last=number == len(self.parts)))
        worst_last: tuple[FinishReason, ...] = ("stop", "runaway", "length")
        return replace(
            self.spoken[0],
            audio=np.frombuffer(b"".join(pcm), "<i2").astype(np.float32) / np.float32(32767),
            codes=np.concatenate([speech.codes for speech in self.spoken]),
            finish_reason=max((speech.finish_reason for speech in self.spoken), key=worst_last.index),
        )


def speak(tts: Oscine, requests: list[SpeechRequest]) -> tuple[list[Speech], float]:
    """The speeches, and how many seconds that took."""
    tellings = [_Telling.of(request) for request in requests]
    # All of them, before the first is spoken and before anything is shown.
    tts.check([replace(telling.request, text=part) for telling in tellings for part in telling.parts])
    begun = time.perf_counter()
    _speak_all(tts, tellings)
    return [telling.joined() for telling in tellings], time.perf_counter() - begun


def _speak_all(tts: Oscine, tellings: list[_Telling]) -> None:
    columns = (SpinnerColumn(), TextColumn("speaking"), TextColumn("{task.fields[status]}"))
    begun = time.perf_counter()
    made_s = 0.0
    parts_left = [len(telling.parts) for telling in tellings]
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=None, status="")

        def show(texts: list[int], chunk: SpokenFrames) -> None:
            nonlocal made_s
            made_s += len(chunk.samples) / tts.sample_rate
            if chunk.finish_reason:
                text = texts[chunk.row]
                parts_left[text] = 0 if chunk.finish_reason == "length" else parts_left[text] - 1
            done = sum(left <= 0 for left in parts_left)
            speed = made_s / (time.perf_counter() - begun)
            count = f"{done}/{len(tellings)} texts, " if len(tellings) > 1 else ""
            bar.update(task, status=f"{count}{made_s:.1f} s of audio, {speed:.2f} x real time")

        while batch := [(text, part) for text, one in enumerate(tellings) for part in one.next_parts()][:_BATCH]:
            texts = [text for text, _ in batch]
            speeches = tts.speak_batch([part for _, part in batch], on_chunk=partial(show, texts))
            for text, speech in zip(texts, speeches, strict=True):
                tellings[text].take(speech)


# --- where it goes --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Places:
    """Where results go: a WAV and, if asked for, a file of codes for every text."""

    wavs: list[Path]
    codes: list[Path]  # empty: not asked for
    folders: dict[str, Path] = field(default_factory=dict)  # by option; made when there is something to put into them

    @staticmethod
    def of_text(output: Path | None, save_codes: Path | None) -> Places:
        output = output or Path("speech.wav")
        if output.suffix.lower() not in ("", ".wav"):
            raise RequestError(
                f"{str(output)!r}: say writes WAV only; name it {output.with_suffix('.wav').name!r}, or ask a server "
                "(`oscine serve`) for another format",
                "output",
            )
        return Places([output], [save_codes] if save_codes else [])

    @staticmethod
    def of_lines(count: int, output: Path | None, save_codes: Path | None) -> Places:
        output = output or Path("speech")
        folders = {"--output": output} | ({"--save-codes": save_codes} if save_codes else {})
        for option, folder in folders.items():
            if folder == _STANDARD_OUTPUT or folder.suffix.lower() in (".wav", ".npy"):
                raise RequestError(f"with --file, {option} is a folder; {str(folder)!r} looks like a file", "output")
        digits = max(3, len(str(count)))
        names = [f"{number:0{digits}}" for number in range(1, count + 1)]
        codes = [save_codes / f"{name}.npy" for name in names] if save_codes else []
        return Places([output / f"{name}.wav" for name in names], codes, folders)

    @property
    def to_standard_output(self) -> bool:
        return self.wavs == [_STANDARD_OUTPUT]

    def check(self, save_voice: Path | None) -> None:
        """Before minutes are spent on a result that has no place to go."""
        if self.to_standard_output and (sys.stdout is None or sys.stdout.isatty()):
            raise RequestError("--output '-' is for a pipe or a redirection, not for a terminal; name a file", "output")
        for option, folder in self.folders.items():
            _check_folder(folder, option)
        taken: dict[str, str] = {}
        wavs = [] if self.to_standard_output else self.wavs
        options = {"--output": wavs, "--save-codes": self.codes, "--save-voice": [save_voice] if save_voice else []}
        for option, path in ((option, path) for option, paths in options.items() for path in paths):
            if option not in self.folders:
                _check_file(path, option)
            first = taken.setdefault(os.path.realpath(path), option)
            if first != option and not _is_device(path):
                raise RequestError(f"{first} and {option} are the same file, {str(path)!r}; name two", "output")

    def write(self, speeches: list[Speech]) -> None:
        import numpy as np

        from oscine.audio import pcm16, wav_header, write_wav

        for folder in self.folders.values():
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise OscineError(f"the folder {str(folder)!r} cannot be made: {error}") from None
        for speech, path in zip(speeches, self.wavs, strict=True):
            if path == _STANDARD_OUTPUT:
                with _told("the WAV cannot be written to standard output"):
                    sys.stdout.buffer.write(wav_header(speech.sample_rate, len(speech.audio)))
                    sys.stdout.buffer.write(pcm16(speech.audio).astype("<i2").tobytes())
                    sys.stdout.buffer.flush()
            else:
                write_wav(path, speech.audio, speech.sample_rate)
        for speech, path in zip(speeches if self.codes else [], self.codes, strict=True):
            try:
                with path.open("wb") as codes:
                    np.save(codes, speech.codes)
            except OSError as error:
                raise OscineError(f"the codes cannot be written to {path}: {error}") from None


def _is_device(path: Path) -> bool:
    return path.exists() and not path.is_file()


def _check_file(path: Path, option: str) -> None:
    if path == _STANDARD_OUTPUT:
        raise RequestError(f"{option} cannot go to standard output; name a file", "output")
    with _refused(path):
        if path.is_dir():
            raise RequestError(f"{str(path)!r} is a folder; add a file name", "output")
        if _is_device(path):
            return
        folder = path.resolve().parent  # a link stays a link, and what it names is written
        if not folder.is_dir():
            raise RequestError(f"there is no folder {str(path.parent)!r} to write to; make it first", "output")
        if path.exists():
            path.open("ab").close()
        tempfile.TemporaryFile(dir=folder).close()


def _check_folder(folder: Path, option: str) -> None:
    with _refused(folder):
        nearest = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
        if not nearest.is_dir():
            raise RequestError(f"with --file, {option} is a folder; {str(nearest)!r} is a file", "output")
        tempfile.TemporaryFile(dir=nearest).close()


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        reason = getattr(error, "strerror", None) or error
        message = f"{str(path)!r} cannot be written: {reason}; choose a place that you may write to"
        raise RequestError(message, "output") from None


def report(speeches: list[Speech], places: Places, took_s: float, as_json: bool) -> None:
    results = [
        {
            "output": str(output),
            "duration_s": round(speech.duration_s, 3),
            "frames": len(speech.codes),
            "finish_reason": speech.finish_reason,
            "seed": speech.seed,
        }
        for speech, output in zip(speeches, places.wavs, strict=True)
    ]
    total_s = sum(speech.duration_s for speech in speeches)
    told = sys.stderr if places.to_standard_output else sys.stdout
    with _told("the speech is written, but standard output cannot be"):
        if as_json:
            facts = {"results": results, "took_s": round(took_s, 3), "x_real_time": round(total_s / took_s, 3)}
            print(json.dumps(facts), file=told, flush=True)
            return
        for result in results:
            reason = "" if result["finish_reason"] == "stop" else f", ended by {result['finish_reason']}"
            line = f"{result['output']}: {result['duration_s']} s, seed {result['seed']}{reason}"
            print(line, file=told, flush=True)
    console.print(f"{total_s:.1f} s of audio in {took_s:.1f} s: {total_s / took_s:.2f} x real time")


@contextmanager
def _told(failed: str) -> Iterator[None]:
    """Standard output may be a full disk, or a pipe that nobody reads."""
    try:
        yield
    except OSError as error:
        # What is still in the buffer would fail once more when the process ends, and be told in its own words.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise OscineError(f"{failed}: {error.strerror}") from None
