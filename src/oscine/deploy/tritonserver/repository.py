"""Writes a model repository of Triton: for each model a config.pbtxt and the files that its code reads."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from oscine.deploy.tritonserver.speech_joiner import CodecShape
from oscine.deploy.tritonserver.tensors import (
    CODEC,
    CODEC_FILE,
    CODEC_SHAPE,
    ENGINE,
    SETTINGS,
    SPEECH,
    SPEECH_INPUTS,
    SPEECH_OUTPUTS,
    TALKER,
    TALKER_INPUTS,
    TALKER_OUTPUTS,
    TensorSpec,
    codec_inputs,
    codec_outputs,
)
from oscine.errors import ConfigError, OscineError
from oscine.serving.settings import Settings

if TYPE_CHECKING:
    from oscine.export import CodecWindow

Way = Literal["fast", "split", "both"]
MODELS: dict[Way, tuple[str, ...]] = {
    "fast": (ENGINE,),
    "split": (TALKER, CODEC, SPEECH),
    "both": (ENGINE, TALKER, CODEC, SPEECH),
}
_CODEC_KINDS = {"python": "KIND_CPU", "onnxruntime": "KIND_AUTO", "tensorrt": "KIND_GPU"}
PLAN_FILE = "model.plan"  # the name that Triton's TensorRT backend looks for
_SETTINGS_HEAD = """\
# Settings of the engine behind this model. Triton listens for requests, so server.host, server.port, server.api_keys
# and the section [worker] have no effect here.

"""
_MODEL_PY = '''\
"""Written by `oscine triton`; the code is in the installed package."""

from oscine.deploy.tritonserver.{module} import {model} as TritonPythonModel

__all__ = ["TritonPythonModel"]
'''


@dataclass(frozen=True, slots=True)
class CodecOptions:
    """The codec of the split way: which backend runs it, on windows of what size, and how it is batched."""

    backend: Literal["python", "onnxruntime", "tensorrt"] = "python"
    file: Path | None = None  # a codec window of `oscine export`; None: it is exported now
    left_context_frames: int | None = None  # None: the export's default
    max_batch_size: int = 64
    queue_delay_us: int = 5000  # how long a window waits for others to share its batch


def write_repository(folder: Path, settings: Settings, way: Way, codec: CodecOptions) -> list[str]:
    """Models of an earlier run are replaced, when all new ones are complete. Returns the command that makes the codec's
    TensorRT plan, if one is asked for and cannot be made here. Raises ConfigError if something else is in the way, and
    what the export of the codec raises."""
    if settings.models:
        raise ConfigError("a repository serves one model; write one for each of the models")
    for name in MODELS[way]:
        _check_replaceable(folder / name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".oscine-") as scratch:
            _Writer(Path(scratch), settings, codec).write(way)
            for name in MODELS[way]:
                shutil.rmtree(folder / name, ignore_errors=True)
                (Path(scratch) / name).rename(folder / name)
    except OSError as error:
        raise OscineError(f"cannot write the repository {str(folder)!r}: {error}") from None
    return _plan_command(folder / CODEC / "1") if way != "fast" and codec.backend == "tensorrt" else []


def _plan_command(version: Path) -> list[str]:
    from oscine.export import read_codec_window
    from oscine.export.tensorrt import trtexec_command

    plan = version.absolute() / PLAN_FILE
    return [] if plan.exists() else trtexec_command(read_codec_window(version.absolute() / CODEC_FILE), plan)


def _check_replaceable(folder: Path) -> None:
    config = folder / "config.pbtxt"
    ours = config.is_file() and config.read_text(encoding="utf-8", errors="replace").startswith(MARK)
    if folder.exists() and not ours:
        raise ConfigError(
            f"{str(folder)!r} was not written by `oscine triton`; remove it, or name another folder for the repository"
        )


class _Writer:
    def __init__(self, folder: Path, settings: Settings, codec: CodecOptions) -> None:
        self._folder, self._settings, self._codec = folder, settings, codec

    def write(self, way: Way) -> None:
        if way != "split":
            self._write_engine()
        if way != "fast":
            self._write_talker()
            self._write_speech(self._write_codec())

    def _write_engine(self) -> None:
        config = config_pbtxt(
            ENGINE,
            SPEECH_INPUTS,
            SPEECH_OUTPUTS,
            about="The whole engine: text to samples. It batches its streams itself.",
            decoupled=True,
            instances=len(self._settings.devices),
        )
        self._write_settings(self._write_model(ENGINE, config, "engine_models.EngineModel"))

    def _write_talker(self) -> None:
        config = config_pbtxt(
            TALKER,
            TALKER_INPUTS,
            TALKER_OUTPUTS,
            about="The engine without its codec: text to codes. It batches its streams itself.",
            decoupled=True,  # one instance: requests for the same stream must reach the same process
        )
        self._write_settings(self._write_model(TALKER, config, "engine_models.TalkerModel"))

    def _write_codec(self) -> CodecWindow:
        from oscine.export import export_codec_window, read_codec_window
        from oscine.export.tensorrt import build_plan, has_trtexec

        options = self._codec
        version = self._folder / CODEC / "1"
        version.mkdir(parents=True)
        if options.file is None:
            context = options.left_context_frames
            window = export_codec_window(self._settings.model, version / CODEC_FILE, left_context_frames=context)
        else:
            window = read_codec_window(options.file)
            shutil.copyfile(options.file, version / CODEC_FILE)
        config = config_pbtxt(
            CODEC,
            codec_inputs(window.window_frames),
            codec_outputs(window.new_frames * window.samples_per_frame),
            about="The codec's decoder: windows of codes to samples, in batches of all streams.",
            backend=options.backend,
            kind=_CODEC_KINDS[options.backend],
            max_batch_size=options.max_batch_size,
            queue_delay_us=options.queue_delay_us,
        )
        self._write_model(CODEC, config, "codec_model.CodecModel" if options.backend == "python" else None)
        if options.backend == "tensorrt" and has_trtexec():
            build_plan(replace(window, path=version / CODEC_FILE), version / PLAN_FILE)
        return window

    def _write_speech(self, window: CodecWindow) -> None:
        config = config_pbtxt(
            SPEECH,
            SPEECH_INPUTS,
            SPEECH_OUTPUTS,
            about=f"Business-logic scripting: text to samples through {TALKER} and {CODEC}.",
            decoupled=True,
        )
        version = self._write_model(SPEECH, config, "speech_model.JoinedSpeechModel")
        self._write_settings(version)
        shape = CodecShape(
            window.left_context_frames, window.new_frames, window.samples_per_frame, window.sample_rate_hz
        )
        (version / CODEC_SHAPE).write_text(json.dumps(asdict(shape), indent=1) + "\n", encoding="utf-8")

    def _write_model(self, name: str, config: str, model: str | None) -> Path:
        """Returns the folder of the version. `model` is a class with its module; Triton's own backends have none."""
        version = self._folder / name / "1"
        version.mkdir(parents=True, exist_ok=True)
        (self._folder / name / "config.pbtxt").write_text(config, encoding="utf-8")
        if model is not None:
            module, _, name_of_class = model.partition(".")
            (version / "model.py").write_text(_MODEL_PY.format(module=module, model=name_of_class), encoding="utf-8")
        return version

    def _write_settings(self, version: Path) -> None:
        (version / SETTINGS).write_text(_SETTINGS_HEAD + self._settings.as_toml(), encoding="utf-8")


MARK = "# Written by `oscine triton`, which replaces it."


def config_pbtxt(
    name: str,
    inputs: Iterable[TensorSpec],
    outputs: Iterable[TensorSpec],
    *,
    about: str,
    backend: str = "python",
    instances: int = 1,
    kind: str = "KIND_CPU",
    decoupled: bool = False,
    max_batch_size: int = 0,
    queue_delay_us: int | None = None,
) -> str:
    """`queue_delay_us`: how long a request may wait for others to share its batch."""
    lines = [
        MARK,
        f"# {about}",
        f'name: "{name}"',
        f'backend: "{backend}"',
        f"max_batch_size: {max_batch_size}",
        *(["model_transaction_policy { decoupled: true }"] if decoupled else []),
        *_tensors("input", inputs),
        *_tensors("output", outputs),
        f"instance_group [ {{ kind: {kind} count: {instances} }} ]",
    ]
    if queue_delay_us is not None:
        lines.append(f"dynamic_batching {{ max_queue_delay_microseconds: {queue_delay_us} }}")
    return "\n".join(lines) + "\n"


def _tensors(section: str, specs: Iterable[TensorSpec]) -> list[str]:
    lines = []
    for spec in specs:
        dims = ", ".join(map(str, spec.dims))
        optional = " optional: true" if spec.optional else ""
        lines.append(f"  # {spec.about}")
        lines.append(f'  {{ name: "{spec.name}" data_type: TYPE_{spec.datatype} dims: [ {dims} ]{optional} }},')
    lines[-1] = lines[-1].removesuffix(",")
    return [f"{section} [", *lines, "]"]
