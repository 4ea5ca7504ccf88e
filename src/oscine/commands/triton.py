"""`oscine triton`: writes a model repository of Triton Inference Server, and starts a server with it."""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from oscine.errors import ConfigError

console = Console(stderr=True)  # standard output is for results


class CodecBackend(StrEnum):
    PYTHON = "python"
    ONNXRUNTIME = "onnxruntime"
    TENSORRT = "tensorrt"


class WayOption(StrEnum):
    FAST = "fast"
    SPLIT = "split"
    BOTH = "both"


def triton(
    repository: Annotated[Path, typer.Argument(help="Folder to write; models of an earlier run are replaced")],
    model: Annotated[str | None, typer.Option("--model", "-m", help="Checkpoint folder, hub id, or 'demo'")] = None,
    way: Annotated[
        WayOption, typer.Option(help="fast: one model, the whole engine. split: talker, codec and speech as models")
    ] = WayOption.BOTH,
    devices: Annotated[str | None, typer.Option(help="auto, cpu, cuda, or a list with one instance on each")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32 or bfloat16")] = None,
    slots: Annotated[int | None, typer.Option(help="Streams at once, per device")] = None,
    voices_dir: Annotated[Path | None, typer.Option(help="Folder of voices, as of `oscine serve`")] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="TOML file, as of `oscine serve`")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="Any other setting: --set engine.queue_limit=8")
    ] = None,
    codec_backend: Annotated[
        CodecBackend, typer.Option(help="What runs the codec of the split way; python needs no backend of the server")
    ] = CodecBackend.PYTHON,
    codec_file: Annotated[
        Path | None, typer.Option(help="codec_window.onnx of `oscine export`; without it, it is exported now")
    ] = None,
    codec_context: Annotated[
        int | None, typer.Option(help="Frames before the new ones that the codec of the split way sees")
    ] = None,
    codec_queue_us: Annotated[
        int, typer.Option(help="Microseconds that codes wait for other streams to share a batch")
    ] = 5000,
    run: Annotated[bool, typer.Option("--run", help="Also start the server with these models")] = False,
    host: Annotated[str, typer.Option(help="With --run: address to listen on; 0.0.0.0: all")] = "127.0.0.1",
    http_port: Annotated[int, typer.Option(help="With --run")] = 8000,
    grpc_port: Annotated[int, typer.Option(help="With --run")] = 8001,
    metrics_port: Annotated[int, typer.Option(help="With --run")] = 8002,
) -> None:
    """Write a model repository for NVIDIA's Triton Inference Server, and start the server with --run."""
    from oscine.deploy.tritonserver.launch import Addresses, model_options, run_server
    from oscine.deploy.tritonserver.repository import MODELS, CodecOptions, write_repository
    from oscine.serving.settings import load_settings, parse_assignments

    flags: dict[str, Any] = {
        "model": _absolute(model),
        "devices": devices,
        "dtype": dtype,
        "engine.slots": slots,
        "server.voices_dir": str(voices_dir.absolute()) if voices_dir else None,
    }
    flags = {path: value for path, value in flags.items() if value is not None}
    settings = load_settings(config, flags | parse_assignments(setting or []))
    if codec_file is not None and codec_context is not None:
        raise ConfigError("--codec-file has its own context; leave --codec-context out")
    codec = CodecOptions(codec_backend.value, codec_file, codec_context, queue_delay_us=codec_queue_us)
    plan_command = write_repository(repository, settings, way.value, codec)
    models = MODELS[way.value]
    console.print(f"wrote {', '.join(models)} to {repository}", markup=False, highlight=False, soft_wrap=True)
    if plan_command:
        console.print("trtexec is not installed here; make the codec's plan with it, on a machine with the same GPU:")
        print(shlex.join(plan_command))
    if run and not plan_command:
        sys.exit(run_server(repository, models, Addresses(host, http_port, grpc_port, metrics_port)))
    print(shlex.join(["tritonserver", *model_options(repository, models)]))


def _absolute(model: str | None) -> str | None:
    """Makes the path of a checkpoint absolute: the server's processes have their own working folder."""
    if model is None or model == "demo":
        return model
    folder = Path(model).expanduser()
    return str(folder.absolute()) if folder.is_dir() else model
