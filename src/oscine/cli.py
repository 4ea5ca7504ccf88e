"""The `oscine` command: parse, hand over, show progress, turn every known error into one line."""

from __future__ import annotations

import json
import os
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

from oscine import __version__
from oscine.bench.command import bench_app
from oscine.evaluate.command import eval_app
from oscine.model_bench.command import bench_model
from oscine.types import ConfigError, OscineError, RequestError, Speech, SpeechRequest
from oscine.voices_command import voices_app

if TYPE_CHECKING:
    from oscine.speaker import Oscine
    from oscine.voice import Voice

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
bench_app.command("model")(bench_model)  # here: the benchmark of servers knows no engine
app.add_typer(bench_app, name="bench")
app.add_typer(eval_app, name="eval")
app.add_typer(voices_app, name="voices")
console = Console(stderr=True)  # standard output is for results

_FILE_BATCH = 8  # texts of a file that are spoken side by side


class TextMode(StrEnum):
    whole = "whole"
    streaming = "streaming"


class Dtype(StrEnum):
    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"


def main() -> None:
    try:
        app()
    except OscineError as error:
        # A Text, so that nothing in the message is taken for markup or an emoji's name.
        console.print(Text.assemble(("error:", "bold red"), " ", str(error)), soft_wrap=True)
        sys.exit(2 if isinstance(error, RequestError) else 1)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"oscine {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True)] = False,
) -> None:
    """Oscine: speech from Qwen3-TTS 12 Hz models."""


@app.command()
def say(
    text: Annotated[str | None, typer.Argument(help="What to say; '-' or nothing: from standard input")] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="WAV file; with --file, a folder")] = Path(
        "speech.wav"
    ),
    file: Annotated[Path | None, typer.Option(help="Say every line of this file, one WAV each")] = None,
    model: Annotated[str, typer.Option("--model", "-m", help="Folder, hub id, or 'demo'")] = "demo",
    voice: Annotated[str | None, typer.Option(help="A preset's name, or a voice file (.safetensors)")] = None,
    language: Annotated[str, typer.Option(help="A language's name, or 'auto'")] = "auto",
    instruct: Annotated[str | None, typer.Option(help="How to say it; for VoiceDesign: the voice in words")] = None,
    ref_audio: Annotated[Path | None, typer.Option(help="Clip of the voice to clone")] = None,
    ref_text: Annotated[str | None, typer.Option(help="The words that are said in the clip")] = None,
    x_vector_only: Annotated[bool, typer.Option("--x-vector-only", help="Take only the timbre from the clip")] = False,
    save_voice: Annotated[Path | None, typer.Option(help="Keep the cloned voice in this file")] = None,
    text_mode: Annotated[TextMode | None, typer.Option(help="Prompt layout; default: the official one")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="At most one frame (80 ms) less than this")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same speech")] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="No randomness in any codebook")] = False,
    temperature: Annotated[float | None, typer.Option(help="Of the first codebook")] = None,
    top_k: Annotated[int | None, typer.Option(help="0: off")] = None,
    top_p: Annotated[float | None, typer.Option(help="1: off")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="1: off")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    dtype: Annotated[Dtype, typer.Option(help="auto: bfloat16 on a GPU, float32 elsewhere")] = Dtype.auto,
    save_codes: Annotated[Path | None, typer.Option(help="Also write the codes, int [frames, 16], as .npy")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON")] = False,
) -> None:
    """Turn text into a WAV file."""
    texts = _texts(text, file)
    _check_clone_options(ref_audio, ref_text, x_vector_only, save_voice, voice)
    outputs = _outputs(output, len(texts)) if file else [output]
    _check_places(outputs[0], save_voice, None if file else save_codes)
    tts = _load(model, device, dtype)
    speaker = _voice(tts, voice, ref_audio, None if x_vector_only else ref_text, save_voice)
    requests = [
        SpeechRequest(
            text=line,
            voice=speaker,
            language=language,
            instruct=instruct,
            text_mode=text_mode.value if text_mode else None,
            seed=seed,
            greedy=greedy or None,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            repetition_penalty=repetition_penalty,
            max_new_tokens=max_new_tokens,
        )
        for line in texts
    ]
    tts.check(requests)  # all of them, before the first is spoken and before anything is shown
    speeches, took_s = _speak(tts, requests)
    _write(speeches, outputs, save_codes, many=file is not None)
    _report(speeches, outputs, took_s, as_json)


@app.command()
def serve(
    model: Annotated[str | None, typer.Option("--model", "-m", help="Folder, hub id, or 'demo'")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; 0.0.0.0: all (default 127.0.0.1)")] = None,
    port: Annotated[int | None, typer.Option("--port", "-p", help="Default 8000; 0: any free one")] = None,
    api_key: Annotated[list[str] | None, typer.Option(help="Ask for this key; may be given several times")] = None,
    devices: Annotated[str | None, typer.Option(help="auto, cpu, cuda, or a list: cuda:0,cuda:1")] = None,
    dtype: Annotated[Dtype | None, typer.Option(help="auto: bfloat16 on a GPU, float32 elsewhere")] = None,
    slots: Annotated[int | None, typer.Option(help="Streams at once, per device")] = None,
    name: Annotated[str | None, typer.Option(help="The name that the model is served under")] = None,
    voices_dir: Annotated[Path | None, typer.Option(help="Where uploaded voices are kept")] = None,
    log_format: Annotated[str | None, typer.Option(help="console or json")] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="A TOML file; see --print-config")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="Any other setting: --set engine.queue_limit=8")
    ] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Show all settings as TOML and end")] = False,
) -> None:
    """Serve a model over HTTP and WebSocket, with a page to try it."""
    from oscine.settings import load_settings

    flags: dict[str, Any] = {
        "model": model,
        "server.host": host,
        "server.port": port,
        "server.api_keys": tuple(api_key) if api_key else None,
        "devices": devices,
        "dtype": dtype.value if dtype else None,
        "engine.slots": slots,
        "name": name,
        "server.voices_dir": str(voices_dir) if voices_dir else None,
        "server.log_format": log_format,
    }
    flags = {path: value for path, value in flags.items() if value is not None}
    for one in setting or []:
        path, equals, value = one.partition("=")
        if not equals:
            raise ConfigError(f"--set takes path=value, such as engine.queue_limit=8; got {one!r}")
        flags[path.strip()] = value.strip()
    settings = load_settings(config, os.environ, flags)
    if print_config:
        print(settings.as_toml(), end="")
        return
    from oscine.serve import serve as run  # here: the server's libraries take time that `--help` should not

    run(settings, console)


def _texts(text: str | None, file: Path | None) -> list[str]:
    if file is not None:
        if text is not None:
            raise RequestError("give the text either as an argument or in --file, not both", "text")
        try:
            lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"{str(file)!r} cannot be read as UTF-8 text: {error}", "file") from None
        if not lines:
            raise RequestError(f"{str(file)!r} holds no text", "file")
        return lines
    if text is None or text == "-":
        if text is None and sys.stdin.isatty():
            raise RequestError("no text; give it as an argument, through standard input, or with --file", "text")
        try:
            return [sys.stdin.read().strip()]
        except UnicodeDecodeError as error:
            raise RequestError(f"standard input is not text: {error}", "text") from None
    return [text]


def _outputs(folder: Path, count: int) -> list[Path]:
    if folder.suffix.lower() == ".wav":
        # The default name stands for "here"; a name that was asked for should not be silently taken as a folder.
        if folder != Path("speech.wav"):
            raise RequestError(f"with --file, --output is a folder; {str(folder)!r} looks like a file", "output")
        folder = Path("speech")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"the folder {str(folder)!r} cannot be made: {error}", "output") from None
    digits = max(3, len(str(count)))
    return [folder / f"{number:0{digits}}.wav" for number in range(1, count + 1)]


def _check_places(*paths: Path | None) -> None:
    """Before minutes are spent on a result that has no place to go."""
    for path in paths:
        if path is not None and path.is_dir():
            raise RequestError(f"{str(path)!r} is a folder; add a file name", "output")
        if path is not None and not path.absolute().parent.is_dir():
            raise RequestError(f"there is no folder {str(path.parent)!r} to write to; make it first", "output")


def _check_clone_options(
    ref_audio: Path | None, ref_text: str | None, x_vector_only: bool, save_voice: Path | None, voice: str | None
) -> None:
    if ref_audio is not None and voice is not None:
        raise RequestError("give either --voice or --ref-audio, not both", "voice")
    for given, option in ((ref_text, "--ref-text"), (x_vector_only, "--x-vector-only"), (save_voice, "--save-voice")):
        if given and ref_audio is None:
            raise RequestError(f"{option} goes with --ref-audio", "ref_audio")


def _load(model: str, device: str, dtype: Dtype) -> Oscine:
    with Progress(SpinnerColumn(), TextColumn("loading {task.description}"), BarColumn(), console=console) as bar:
        task = bar.add_task(escape(model), total=None)
        from oscine.speaker import Oscine  # here, not above: torch takes seconds that `--help` should not

        return Oscine(
            model,
            device=device,
            dtype=dtype.value,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )


def _voice(
    tts: Oscine, voice: str | None, ref_audio: Path | None, ref_text: str | None, save_voice: Path | None
) -> str | Voice | None:
    from oscine.voice import Voice

    if ref_audio is not None:
        cloned = tts.clone(ref_audio, ref_text)
        if save_voice is not None:
            cloned.save(save_voice)
        return cloned
    if voice is not None and voice.endswith(".safetensors"):
        return Voice.load(voice)
    return voice


def _speak(tts: Oscine, requests: list[SpeechRequest]) -> tuple[list[Speech], float]:
    columns = (SpinnerColumn(), TextColumn("speaking"), TextColumn("{task.fields[status]}"))
    speeches: list[Speech] = []
    begun = time.perf_counter()
    made_s = 0.0
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=None, status="")

        def show(samples: int) -> None:
            nonlocal made_s
            made_s += samples / tts.sample_rate
            speed = made_s / (time.perf_counter() - begun)
            count = f"{len(speeches)}/{len(requests)} texts, " if len(requests) > 1 else ""
            bar.update(task, status=f"{count}{made_s:.1f} s of audio, {speed:.2f} x real time")

        for at in range(0, len(requests), _FILE_BATCH):
            batch = requests[at : at + _FILE_BATCH]
            speeches += tts.speak_batch(batch, on_chunk=lambda chunk: show(len(chunk.samples)))
    return speeches, time.perf_counter() - begun


def _write(speeches: list[Speech], outputs: list[Path], save_codes: Path | None, *, many: bool) -> None:
    import numpy as np

    from oscine.audio import write_wav

    for speech, output in zip(speeches, outputs, strict=True):
        write_wav(output, speech.audio, speech.sample_rate)
        if save_codes is not None:
            # With --file: one .npy beside each WAV, named as the WAV.
            path = output.with_suffix(".npy") if many else save_codes
            try:
                with path.open("wb") as codes:
                    np.save(codes, speech.codes)
            except OSError as error:
                raise OscineError(f"the codes cannot be written to {path}: {error}") from None


def _report(speeches: list[Speech], outputs: list[Path], took_s: float, as_json: bool) -> None:
    results = [
        {
            "output": str(output),
            "duration_s": round(speech.duration_s, 3),
            "frames": len(speech.codes),
            "finish_reason": speech.finish_reason,
            "seed": speech.seed,
        }
        for speech, output in zip(speeches, outputs, strict=True)
    ]
    total_s = sum(speech.duration_s for speech in speeches)
    if as_json:
        print(json.dumps({"results": results, "took_s": round(took_s, 3), "x_real_time": round(total_s / took_s, 3)}))
        return
    for result in results:
        reason = "" if result["finish_reason"] == "stop" else f", ended by {result['finish_reason']}"
        print(f"{result['output']}: {result['duration_s']} s, seed {result['seed']}{reason}")
    console.print(f"{total_s:.1f} s of audio in {took_s:.1f} s: {total_s / took_s:.2f} x real time")
