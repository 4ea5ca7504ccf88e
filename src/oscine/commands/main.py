"""The `oscine` command: parses arguments, calls the commands, prints every known error in one line."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from oscine import __version__
from oscine.commands.doctor import doctor
from oscine.commands.export import export
from oscine.commands.keys import keys_app
from oscine.commands.plan import plan
from oscine.commands.triton import triton
from oscine.commands.voices import voices_app
from oscine.errors import ConfigError, OscineError, RequestError
from oscine.fields import RequestField
from oscine.request import SpeechRequest
from oscine.serving.environment import early_worker
from oscine_bench.command import bench_app
from oscine_eval.command import eval_app

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(bench_app, name="bench")
app.add_typer(eval_app, name="eval")
app.add_typer(keys_app, name="keys")
app.add_typer(voices_app, name="voices")
app.command()(doctor)
app.command()(export)
app.command()(plan)
app.command()(triton)
console = Console(stderr=True)  # standard output is for results

_F = TypeVar("_F", bound=Callable[..., Any])
_SHORT_NAMES = {"paragraph_pause_s": "--paragraph-pause"}
_enum: Callable[[dict[str, str]], Any] = partial(StrEnum, "Choice")  # older versions of typer know no Literal


class DtypeOption(StrEnum):
    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"


class KernelsOption(StrEnum):
    auto = "auto"
    triton = "triton"
    cuda = "cuda"


class QuantizeOption(StrEnum):
    auto = "auto"
    none = "none"
    fp8 = "fp8"
    int8 = "int8"


def main() -> None:
    open_standard_streams()
    try:
        app()
    except OscineError as error:
        # A Text, so that nothing in the message is read as markup or as an emoji's name.
        console.print(Text.assemble(("error:", "bold red"), " ", str(error)), soft_wrap=True)
        sys.exit(2 if isinstance(error, RequestError) else 1)


def open_standard_streams() -> None:
    """A program that is started with closed streams would get their numbers for its sockets, and print into them."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115 (stays open)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"oscine {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", metavar="", help="Print the version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Oscine: speech from Qwen3-TTS 12 Hz models."""


def with_request_options(*declared: str) -> Callable[[_F], _F]:
    """Gives a command the fields of a request, but for those that it has `declared` itself; it takes them as
    `**fields`."""

    def decorate(command: _F) -> _F:
        signature = inspect.signature(command, eval_str=True)
        parameters = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        parameters += [_parameter(one) for name, one in SpeechRequest.fields().items() if name not in declared]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        return command

    return decorate


def _parameter(field: RequestField) -> inspect.Parameter:
    dashed = field.name.replace("_", "-")
    names = [f"--{dashed}"] if field.kind is not bool else [f"--{dashed}/--no-{dashed}"]
    if short := _SHORT_NAMES.get(field.name):
        names.insert(0, short)
    kind: Any = type(field.choices[0]) if field.choices else field.kind
    if field.choices and kind is str:
        kind = _enum({name: name for name in field.choices})
    help_text = escape(field.spec.about.replace("`", "").rstrip("."))
    option = typer.Option(*names, help=help_text, metavar="" if kind is bool else None)
    hint: Any = kind | None if field.optional else kind
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=Annotated[hint, option]
    )


@app.command()
@with_request_options("voice", "pronunciations")
def say(
    text: Annotated[str | None, typer.Argument(help="Text to speak; '-' or nothing: standard input")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Audio file; its suffix chooses the format (wav, mp3, opus, flac, aac, pcm, mulaw, alaw, g722). '-': "
            "standard output, as it is generated. Default: speech.wav. With --file: a folder",
        ),
    ] = None,
    play: Annotated[bool, typer.Option("--play", metavar="", help="Play on the loudspeaker")] = False,
    file: Annotated[Path | None, typer.Option(help="Speak every line of this file, one audio file each")] = None,
    script: Annotated[
        Path | None, typer.Option(help='Speak a dialogue: a JSON list of turns, {"voice": ..., "text": ...} each')
    ] = None,
    format_name: Annotated[str | None, typer.Option("--format", help="Format of standard output or of --file")] = None,
    model: Annotated[str, typer.Option("--model", "-m", help="Checkpoint folder, hub id, or 'demo'")] = "demo",
    voice: Annotated[
        str | None, typer.Option(help="A preset voice, a voice file (.safetensors), or a mix: ryan(3)+me.safetensors")
    ] = None,
    ref_audio: Annotated[Path | None, typer.Option(help="Clip of the voice to clone")] = None,
    ref_text: Annotated[str | None, typer.Option(help="Transcript of the clip")] = None,
    x_vector_only: Annotated[
        bool, typer.Option("--x-vector-only", metavar="", help="Use only the timbre of the clip")
    ] = False,
    save_voice: Annotated[Path | None, typer.Option(help="Save the cloned voice to this file")] = None,
    pronounce: Annotated[
        list[str] | None, typer.Option(help="WORD=SPOKEN, such as Oscine=OSS-een; may be given several times")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    dtype: Annotated[DtypeOption, typer.Option(help="auto: bfloat16 on a GPU, float32 elsewhere")] = DtypeOption.auto,
    save_codes: Annotated[
        Path | None,
        typer.Option(help=escape("Also write the codes, int [frames, 16], as .npy; with --file: a folder of them")),
    ] = None,
    subtitles: Annotated[
        Path | None,
        typer.Option(help="Also write subtitles, .srt or .vtt; needs --aligner. With --file: a folder of .srt files"),
    ] = None,
    aligner: Annotated[
        Path | None, typer.Option(help="Whisper folder in CTranslate2's format, which finds the times of words")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print the result as JSON")] = False,
    **fields: Any,
) -> None:
    """Turn text into speech: a file, standard output or the loudspeaker."""
    # Here: a server is spawned sooner without them.
    from oscine.commands.say import (
        MAX_SLOTS,
        Outputs,
        Subtitles,
        check_clone_options,
        choose_voice,
        load,
        read_dialogue,
        read_texts,
        report,
        speak,
        spoken_request,
        with_voices,
    )

    turns = read_dialogue(script, text, file) if script else ()
    texts = [] if turns else read_texts(text, file)
    request = spoken_request(texts, turns, pronounce or [], fields)
    check_clone_options(ref_audio, ref_text, x_vector_only, save_voice, voice)
    if file:
        outputs = Outputs.for_lines(len(texts), output, save_codes, format_name)
    else:
        outputs = Outputs.for_text(output, save_codes, format_name, play=play)
    outputs.check(save_voice)
    outputs.check_encoding(request)
    timed = Subtitles.opened(subtitles, aligner, [path.stem for path in outputs.audio] if file else None)
    tts = load(model, device, dtype.value, slots=1 if play or not file else min(MAX_SLOTS, len(texts)))
    if not turns or voice or ref_audio or not all(turn.voice for turn in turns):
        speaker = choose_voice(tts, voice, ref_audio, None if x_vector_only else ref_text, save_voice)
        request = replace(request, voice=speaker)
    requests = [with_voices(request, tts)] if turns else [replace(request, text=line) for line in texts]
    speeches, took_s = speak(tts, requests, outputs, play=play, on_segment=timed.add if timed else None)
    outputs.write(speeches)
    report(speeches, outputs, took_s, as_json)
    if timed:
        timed.write(speeches, request.language)


@app.command()
def serve(
    model: Annotated[
        list[str] | None, typer.Argument(help="Checkpoint folder, hub id, or 'demo' (the default); several: one each")
    ] = None,
    model_option: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="The same as the argument; of several, each may have its own --name, --devices, --slots",
        ),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; 0.0.0.0: all (default 127.0.0.1)")] = None,
    port: Annotated[int | None, typer.Option("--port", "-p", help="Default 8000; 0: any free one")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM certificate, with its chain: serve HTTPS")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its PEM key; default: in the file of the certificate")] = None,
    api_key: Annotated[list[str] | None, typer.Option(help="Require this key; may be given several times")] = None,
    admin_key: Annotated[list[str] | None, typer.Option(help="A key that may add and remove models")] = None,
    keys_file: Annotated[Path | None, typer.Option(help="File of named keys, which `oscine keys` writes")] = None,
    devices: Annotated[list[str] | None, typer.Option(help="auto, cpu, cuda, or a list: cuda:0,cuda:1")] = None,
    dtype: Annotated[DtypeOption | None, typer.Option(help="auto: bfloat16 on a GPU, float32 elsewhere")] = None,
    kernels: Annotated[KernelsOption | None, typer.Option(help="auto: cuda on Hopper GPUs, triton elsewhere")] = None,
    quantize: Annotated[QuantizeOption | None, typer.Option(help="8-bit weights: fp8 on Hopper, int8 on CPUs")] = None,
    slots: Annotated[list[int] | None, typer.Option(help="Streams at once, per device")] = None,
    name: Annotated[list[str] | None, typer.Option(help="Name that the model is served under")] = None,
    memory_share: Annotated[
        list[float] | None, typer.Option(help="Largest share of a device's memory; slots are lowered to fit")
    ] = None,
    voices_dir: Annotated[Path | None, typer.Option(help="Folder of uploaded voices")] = None,
    aligner: Annotated[
        Path | None, typer.Option(help="Whisper folder in CTranslate2's format, for word timestamps")
    ] = None,
    log_format: Annotated[str | None, typer.Option(help="console or json")] = None,
    allowed_hosts: Annotated[
        str | None, typer.Option(help="Names of the server beside localhost: speech.example.com,*.example.org")
    ] = None,
    forwarded_allow_ips: Annotated[
        str | None, typer.Option(help="Proxies whose X-Forwarded-For is believed: 127.0.0.1,10.0.0.0/8")
    ] = None,
    exit_on_failure: Annotated[
        bool,
        typer.Option("--exit-on-failure", metavar="", help="End when the engine has failed; default: retry forever"),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", metavar="", help="Refuse requests with unknown fields; default: ignore those")
    ] = False,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="TOML file; see --print-config")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="Any other setting: --set engine.queue_limit=8")
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", metavar="", help="Print all settings as TOML and exit")
    ] = False,
) -> None:
    """Serve one or several models over HTTP and WebSocket, with a playground page."""
    if model and model_option and model != model_option:
        raise ConfigError(f"models are named as arguments {model} and with --model {model_option}; use one way")
    with nullcontext() if print_config else early_worker() as spawned:
        # Imported while the worker imports torch.
        from oscine.serving.settings import load_settings, model_flags, parse_assignments

        flags: dict[str, Any] = {
            **model_flags(model or model_option, name=name, devices=devices, slots=slots, memory_share=memory_share),
            "server.host": host,
            "server.port": port,
            "server.tls_cert": str(tls_cert) if tls_cert else None,
            "server.tls_key": str(tls_key) if tls_key else None,
            "server.api_keys": tuple(api_key) if api_key else None,
            "server.admin_keys": tuple(admin_key) if admin_key else None,
            "server.keys_file": str(keys_file) if keys_file else None,
            "dtype": dtype.value if dtype else None,
            "engine.kernels": kernels.value if kernels else None,
            "engine.quantize": quantize.value if quantize else None,
            "server.voices_dir": str(voices_dir) if voices_dir else None,
            "server.aligner": str(aligner) if aligner else None,
            "server.log_format": log_format,
            "server.allowed_hosts": allowed_hosts,
            "server.forwarded_allow_ips": forwarded_allow_ips,
            "server.exit_on_failure": exit_on_failure or None,
            "server.strict": strict or None,
        }
        flags = {path: value for path, value in flags.items() if value is not None}
        settings = load_settings(config, flags | parse_assignments(setting or []))
        if print_config:
            print(settings.as_toml(), end="")
            return
        from oscine.commands.serve import serve as run

        run(settings, console, spawned)
