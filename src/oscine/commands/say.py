"""`oscine say`: text to audio files, standard output or the loudspeaker, on an engine in this process.

Everything that can be refused is refused before the model is loaded.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from oscine.align.aligner import Aligner
from oscine.align.subtitles import subtitle_format, subtitles
from oscine.align.word_split import TimedWord, written_words
from oscine.commands.voices import clip_warnings
from oscine.errors import OscineError, RequestError, VoiceError
from oscine.request import SpeechRequest, Turn, VoiceMix, naming_turn, turns_of
from oscine.speech.capabilities import unsupported_script
from oscine.speech.events import Speech, format_named, format_of, sound_device
from oscine.text.options import TextLevel, asked_level
from oscine.text.ssml import tag_warning

if TYPE_CHECKING:
    from oscine.api import Oscine
    from oscine.model.device import Dtype
    from oscine.speech.events import SegmentEnded, SpeechEvent
    from oscine.voice import Voice

console = Console(stderr=True)  # standard output is for results

MAX_SLOTS = 8  # texts that are spoken side by side
_STDOUT = Path("-")
_USUAL_RATE_HZ = 24_000  # every format has it


def read_texts(text: str | None, file: Path | None) -> list[str]:
    from oscine.speech.capabilities import check_text  # here: `--help` needs no tokenizer

    texts = _read_lines(text, file) if file is not None else [_read_text(text)]
    for one in texts:
        check_text(one)  # now: loading a model takes time
    return texts


def _read_lines(text: str | None, file: Path) -> list[str]:
    if text is not None:
        raise RequestError("give the text either as an argument or in --file, not both", "text")
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"cannot read {str(file)!r} as UTF-8 text: {error}", "file") from None
    if not lines:
        raise RequestError(f"{str(file)!r} holds no text", "file")
    return lines


def _read_text(text: str | None) -> str:
    if text is not None and text != "-":
        return text
    if sys.stdin is None or (text is None and sys.stdin.isatty()):
        raise RequestError("no text; give it as an argument, through standard input, or with --file", "text")
    try:
        return sys.stdin.read().strip()
    except UnicodeDecodeError as error:
        raise RequestError(f"standard input is not UTF-8 text: {error}", "text") from None


def read_dialogue(script: Path, text: str | None, file: Path | None) -> tuple[Turn, ...]:
    """The turns of a JSON file: a list, or an object with the field `input`, as over HTTP."""
    from oscine.speech.capabilities import check_text

    if text is not None or file is not None:
        raise RequestError("give either a text, --file or --script", "script")
    try:
        given = json.loads(script.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RequestError(f"cannot read {str(script)!r} as JSON: {error}", "script") from None
    if isinstance(given, dict) and (others := sorted(given.keys() - {"input"})):
        message = f"{str(script)!r} has the field {others[0]!r} beside the turns; leave it out and give it as an option"
        raise RequestError(message, "script")
    turns = turns_of(given.get("input") if isinstance(given, dict) else given)
    for index, turn in enumerate(turns):
        with naming_turn(index):
            check_text(turn.text)
    return turns


def spoken_request(
    texts: Sequence[str], turns: Sequence[Turn], pronounce: list[str], fields: dict[str, Any]
) -> SpeechRequest:
    """What the texts have in common, or the dialogue. Raises RequestError for fields, or tags in the texts, that cannot
    be used."""
    from oscine.text.preparation import check_text_options, prepare_text  # here: `--help` needs no such rules

    for entry in pronounce:
        if "=" not in entry:
            raise RequestError(f"--pronounce takes WORD=SPOKEN, got {entry!r}", "pronunciations")
    spoken = dict(entry.split("=", 1) for entry in pronounce)
    fields = {name: value.value if isinstance(value, StrEnum) else value for name, value in fields.items()}
    request = SpeechRequest("", turns=turns, pronunciations=spoken or None, **fields)
    request.check()
    check_text_options(request, request.language)
    for text in texts:
        prepare_text(text, request, request.language)
    for index, alone in enumerate(request.alone() if turns else ()):
        with naming_turn(index):
            prepare_text(alone.text, alone, alone.language)
    return request


def with_voices(request: SpeechRequest, tts: Oscine) -> SpeechRequest:
    """The request with the voices of its turns."""
    turns = []
    for index, turn in enumerate(request.turns):
        with naming_turn(index):
            voice = choose_voice(tts, turn.voice, None, None, None) if isinstance(turn.voice, str | VoiceMix) else None
            turns.append(replace(turn, voice=voice))
    return replace(request, turns=turns)


def check_clone_options(
    ref_audio: Path | None, ref_text: str | None, x_vector_only: bool, save_voice: Path | None, voice: str | None
) -> None:
    if ref_audio is not None and voice is not None:
        raise RequestError("give either --voice or --ref-audio, not both", "voice")
    for given, option in ((ref_text, "--ref-text"), (x_vector_only, "--x-vector-only"), (save_voice, "--save-voice")):
        if given and ref_audio is None:
            raise RequestError(f"{option} needs --ref-audio", "ref_audio")


def load(model: str, device: str, dtype: Dtype, slots: int) -> Oscine:
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), console=console, transient=True
    ) as bar:
        task = bar.add_task(f"loading {escape(model)}", total=None)
        from oscine.api import Oscine  # here: torch takes seconds that `--help` should not

        def show(stage: str, done: int, total: int) -> None:
            if not stage.startswith("memory"):
                bar.update(task, description=f"loading {escape(model)}: {stage}", completed=done, total=total)

        return Oscine(model, device=device, dtype=dtype, slots=slots, progress=show)


def choose_voice(
    tts: Oscine, voice: str | VoiceMix | None, ref_audio: Path | None, ref_text: str | None, save_voice: Path | None
) -> str | Voice | None:
    from oscine.voice import Voice

    if ref_audio is not None:
        with clip_warnings(console):
            cloned = tts.clone(ref_audio, ref_text)
        if save_voice is not None:
            cloned.save(save_voice)
        return cloned
    if isinstance(voice, str) and not os.path.isfile(voice):
        voice = VoiceMix.named(voice) or voice
    if isinstance(voice, VoiceMix):
        return tts.mix({choose_voice(tts, str(name), None, None, None) or "": weight for name, weight in voice.parts})
    is_preset = voice is not None and voice.lower() in tts.voices
    if voice is not None and not is_preset and (voice.endswith(".safetensors") or os.path.isfile(voice)):
        return Voice.load(voice)
    if tts.config.kind == "base":
        problem = f"has no preset voices, so {voice!r} cannot be found" if voice else "needs a voice to clone"
        message = f"this Base checkpoint {problem}; give a clip with --ref-audio, or a saved voice with --voice"
        raise VoiceError(message, "voice")
    return voice


def _tag_warnings(requests: list[SpeechRequest], default: TextLevel) -> Iterator[str | None]:
    texts: dict[TextLevel, str] = {}
    for request in filter(lambda one: one.markup, requests):
        level = asked_level(request) or default
        texts[level] = f"{texts.get(level, '')} {request.written}"
    return (tag_warning(text, level) for level, text in texts.items())


def speak(
    tts: Oscine,
    requests: list[SpeechRequest],
    outputs: Outputs,
    *,
    play: bool = False,
    on_segment: Callable[[int, SegmentEnded], None] | None = None,
) -> tuple[list[Speech], float]:
    """The speeches and how many seconds they took. Standard output and the loudspeaker get audio as it is made.
    `on_segment` gets the index of a request and each segment of its text."""
    from oscine.speech.events import Audio, Ended, SegmentEnded

    tts.check(requests)  # before anything is shown or written
    texts = " ".join(request.written for request in requests)
    card = tts.config.card("")
    for warning in filter(None, (unsupported_script(texts, card), *_tag_warnings(requests, card.text_level))):
        console.print(f"warning: {warning}", style="yellow", markup=False, highlight=False)
    rate_hz = requests[0].sample_rate or tts.sample_rate
    begun_s = time.perf_counter()
    made_s = 0.0
    done: set[int] = set()
    columns = (SpinnerColumn(), TextColumn("speaking"), TextColumn("{task.fields[status]}"))
    with ExitStack() as stack:
        sinks = []
        if outputs.to_stdout:
            sinks.append(stack.enter_context(_stdout_sink(outputs.stdout_format, rate_hz)))
        if play:
            sinks.append(stack.enter_context(_loudspeaker_sink(rate_hz)))
        bar = stack.enter_context(Progress(*columns, console=console))
        task = bar.add_task("", total=None, status="")

        def on_event(index: int, event: SpeechEvent) -> None:
            nonlocal made_s
            match event:
                case Audio(data=data):
                    for sink in sinks:
                        sink(data)
                    made_s += len(data) / 2 / rate_hz
                case SegmentEnded() if on_segment:
                    on_segment(index, event)
                case Ended():
                    done.add(index)
            count = f"{len(done)}/{len(requests)} texts, " if len(requests) > 1 else ""
            speed = made_s / (time.perf_counter() - begun_s)
            bar.update(task, status=f"{count}{made_s:.1f} s of audio, {speed:.2f} x real time")

        speeches = tts.speak_batch(requests, on_event=on_event)
    return speeches, time.perf_counter() - begun_s


@contextmanager
def _stdout_sink(format_name: str, rate_hz: int) -> Iterator[Callable[[bytes], None]]:
    from oscine.audio.encoders import open_encoder, open_file_encoder

    # Nobody listens to a redirection into a file, so its header can wait for the length.
    to_file = stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode)
    encoder = (open_file_encoder if to_file else open_encoder)(format_name, rate_hz=rate_hz)

    def write(encoded: bytes) -> None:
        if encoded:
            with _stdout_errors("cannot write the audio to standard output"):
                sys.stdout.buffer.write(encoded)
                sys.stdout.buffer.flush()

    yield lambda pcm: write(encoder.push(pcm))
    write(encoder.finish())


@contextmanager
def _loudspeaker_sink(rate_hz: int) -> Iterator[Callable[[bytes], None]]:
    with sound_device().RawOutputStream(samplerate=rate_hz, channels=1, dtype="int16") as stream:
        yield lambda pcm: stream.write(pcm) if pcm else None


@dataclass(frozen=True)
class Outputs:
    """The files of the results: an audio file and, with --save-codes, a file of codes for every text."""

    audio: list[Path]
    codes: list[Path]  # empty: not requested
    folders: dict[str, Path] = field(default_factory=dict)  # by option; created when there is something to write
    stdout_format: str = "wav"

    @staticmethod
    def for_text(output: Path | None, save_codes: Path | None, format_name: str | None, *, play: bool) -> Outputs:
        wanted = format_named(format_name or "wav", "--format")
        if output is None and play:
            return Outputs([], [save_codes] if save_codes else [])
        output = output or Path(f"speech.{format_name or 'wav'}")
        if output == _STDOUT:
            return Outputs([output], [save_codes] if save_codes else [], stdout_format=wanted)
        if format_name is not None and format_of(output) != wanted:
            raise RequestError(f"--format {format_name} contradicts the suffix of {str(output)!r}", "output")
        return Outputs([output], [save_codes] if save_codes else [])

    @staticmethod
    def for_lines(count: int, output: Path | None, save_codes: Path | None, format_name: str | None) -> Outputs:
        output, suffix = output or Path("speech"), format_name or "wav"
        format_named(suffix, "--format")
        folders = {"--output": output} | ({"--save-codes": save_codes} if save_codes else {})
        for option, folder in folders.items():
            if folder == _STDOUT or folder.suffix.lower() in (".wav", ".npy", ".mp3", ".flac", ".opus"):
                raise RequestError(f"with --file, {option} is a folder; {str(folder)!r} looks like a file", "output")
        digits = max(3, len(str(count)))
        names = [f"{number:0{digits}}" for number in range(1, count + 1)]
        codes = [save_codes / f"{name}.npy" for name in names] if save_codes else []
        return Outputs([output / f"{name}.{suffix}" for name in names], codes, folders)

    @property
    def to_stdout(self) -> bool:
        return self.audio == [_STDOUT]

    def check(self, save_voice: Path | None) -> None:
        """Refuses outputs that cannot be written."""
        if self.to_stdout and (sys.stdout is None or sys.stdout.isatty()):
            raise RequestError("--output '-' is for a pipe or a redirection, not for a terminal; name a file", "output")
        for option, folder in self.folders.items():
            _check_folder(folder, option)
        audio = [] if self.to_stdout else self.audio
        options = {"--output": audio, "--save-codes": self.codes, "--save-voice": [save_voice] if save_voice else []}
        taken: dict[str, str] = {}
        for option, path in ((option, path) for option, paths in options.items() for path in paths):
            if option not in self.folders:
                _check_file(path, option)
            if option == "--output":
                format_of(path)
            first = taken.setdefault(os.path.realpath(path), option)
            if first != option and not _is_device(path):
                raise RequestError(f"{first} and {option} are the same file, {str(path)!r}; name two", "output")

    def check_encoding(self, request: SpeechRequest) -> None:
        """Refuses a rate that a format does not have."""
        from oscine.audio.encoders import checked_format

        written = [self.stdout_format] if self.to_stdout else [format_of(path) for path in self.audio[:1]]
        for name in written or ["pcm"]:  # the loudspeaker
            checked_format(name, _USUAL_RATE_HZ, request.sample_rate, request.speed)

    def write(self, speeches: list[Speech]) -> None:
        import numpy as np

        for folder in self.folders.values():
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise OscineError(f"cannot make the folder {str(folder)!r}: {error}") from None
        for speech, path in zip(speeches if self.audio and not self.to_stdout else [], self.audio, strict=False):
            speech.save(path)
        for speech, path in zip(speeches if self.codes else [], self.codes, strict=True):
            try:
                with path.open("wb") as codes:
                    np.save(codes, speech.codes)
            except OSError as error:
                raise OscineError(f"cannot write the codes to {path}: {error}") from None


def _is_device(path: Path) -> bool:
    return path.exists() and not path.is_file()


def _check_file(path: Path, option: str) -> None:
    if path == _STDOUT:
        raise RequestError(f"{option} cannot go to standard output; name a file", "output")
    with _write_errors(path):
        if path.is_dir():
            raise RequestError(f"{str(path)!r} is a folder; add a file name", "output")
        if _is_device(path):
            return
        folder = path.resolve().parent  # of the file that a link points to
        if not folder.is_dir():
            raise RequestError(f"there is no folder {str(path.parent)!r}; make it first", "output")
        if path.exists():
            path.open("ab").close()
        tempfile.TemporaryFile(dir=folder).close()


def _check_folder(folder: Path, option: str) -> None:
    with _write_errors(folder):
        nearest = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
        if not nearest.is_dir():
            raise RequestError(f"with --file, {option} is a folder; {str(nearest)!r} is a file", "output")
        tempfile.TemporaryFile(dir=nearest).close()


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        reason = getattr(error, "strerror", None) or error
        message = f"{str(path)!r} cannot be written: {reason}; choose a folder that you may write to"
        raise RequestError(message, "output") from None


@dataclass(frozen=True)
class Subtitles:
    """The subtitle files to write, and the segments of the speeches so far: they are aligned when these are written."""

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
            _check_file(output, "--subtitles")
        else:
            _check_folder(output, "--subtitles")
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
        turn = segment.turn
        words = self.aligner.align(samples, rate_hz, text, (turn.request.language if turn else language).lower())
        return [
            replace(
                word,
                start_s=segment.start_s + word.start_s,
                end_s=segment.start_s + word.end_s,
                speaker=turn.voice if turn else None,
            )
            for word in (written_words(segment.spoken, words) if segment.spoken else words)
            if word.start_s is not None and word.end_s is not None
        ]


def report(speeches: list[Speech], outputs: Outputs, took_s: float, as_json: bool) -> None:
    names = [str(path) for path in outputs.audio] or ["played"] * len(speeches)
    results = [
        {
            "output": name,
            "duration_s": round(speech.duration_s, 3),
            "frames": len(speech.codes),
            "finish_reason": speech.finish_reason,
            "seed": speech.seed,
        }
        for speech, name in zip(speeches, names, strict=True)
    ]
    total_s = sum(speech.duration_s for speech in speeches)
    stream = sys.stderr if outputs.to_stdout else sys.stdout
    with _stdout_errors("the speech is written, but the report cannot be: standard output"):
        if as_json:
            summary = {"results": results, "took_s": round(took_s, 3), "x_real_time": round(total_s / took_s, 3)}
            print(json.dumps(summary), file=stream, flush=True)
            return
        for result in results:
            reason = "" if result["finish_reason"] == "stop" else f", ended by {result['finish_reason']}"
            line = f"{result['output']}: {result['duration_s']} s, seed {result['seed']}{reason}"
            print(line, file=stream, flush=True)
    console.print(f"{total_s:.1f} s of audio in {took_s:.1f} s: {total_s / took_s:.2f} x real time")


@contextmanager
def _stdout_errors(failed: str) -> Iterator[None]:
    """Turns an error of standard output, such as a full disk or a closed pipe, into one of ours."""
    try:
        yield
    except OSError as error:
        # The buffered rest would fail again at exit, with a message of Python's own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise OscineError(f"{failed}: {error.strerror}") from None
