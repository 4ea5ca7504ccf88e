"""The inputs and outputs of the models, which config.pbtxt and the docs follow, and requests and responses of Triton's
Python backend in plain Python.

`triton_python_backend_utils` exists only inside the server's processes, so it is imported on first use.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from oscine.audio.pcm import CODEBOOKS
from oscine.errors import (
    EngineError,
    FieldError,
    NotAllowedError,
    NotFoundError,
    OscineError,
    OverloadedError,
    RequestError,
    shown_name,
    unknown_choice,
)
from oscine.fields import RequestField
from oscine.request import SpeechRequest
from oscine.server.http.errors import api_error

ENGINE, TALKER, CODEC, SPEECH = "oscine", "oscine_talker", "oscine_codec", "oscine_speech"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    name: str
    datatype: str  # as in config.pbtxt, without TYPE_
    about: str
    dims: tuple[int, ...] = (1,)
    optional: bool = False


def _option(name: str, datatype: str, about: str, dims: tuple[int, ...] = (1,)) -> TensorSpec:
    return TensorSpec(name, datatype, about, dims, optional=True)


def _datatype(field: RequestField) -> str:
    """Returns Triton's type of a field. Factors are FP64, so that they are the same numbers as in JSON."""
    if field.kind is int:
        most = field.spec.most or 0
        return "UINT64" if most >= 2**63 else "INT64" if most >= 2**31 else "INT32"
    return {bool: "BOOL", float: "FP64"}.get(field.kind, "STRING")


def _request_inputs() -> Iterator[TensorSpec]:
    for name, field in SpeechRequest.fields().items():
        if name not in _OF_AUDIO:
            is_json = field.kind == Mapping[str, str]
            yield _option(name, _datatype(field), f"{'A JSON object. ' if is_json else ''}{field.spec.about}")


_OF_AUDIO = ("speed", "volume", "sample_rate")  # the samples are the engine's own
# Names and meanings are those of POST /v1/audio/speech.
SPEECH_INPUTS = (
    TensorSpec("text", "STRING", "The text to speak, of any length; UTF-8."),
    *_request_inputs(),
    _option("ref_audio", "STRING", "A clip to clone: the content of an audio file, or as text a data: URL or base64."),
    _option("ref_text", "STRING", "The transcript of the clip; without it only the timbre is cloned."),
    _option("x_vector_only_mode", "BOOL", "Clone only the timbre, even with a transcript."),
    _option("speaker_embedding", "FP32", "A speaker vector instead of a clip.", (-1,)),
    _option("non_streaming_mode", "BOOL", "true: `text_mode` is `whole`; false: `streaming`."),
)
_END_OUTPUTS = (
    TensorSpec("final", "BOOL", "This response is the last one."),
    TensorSpec("finish_reason", "STRING", "On the last response: stop, length or runaway; before it, empty."),
    TensorSpec("seed", "UINT64", "The seed of this speech."),
)
SPEECH_OUTPUTS = (
    TensorSpec("audio", "INT16", "The next samples, mono; may be empty on the last response.", (-1,)),
    TensorSpec("sample_rate", "INT32", "In Hz."),
    *_END_OUTPUTS,
)
TALKER_INPUTS = (
    _option("text", "STRING", "The text to speak, of any length; UTF-8."),
    *SPEECH_INPUTS[1:],
    _option("pull", "STRING", "An id of a stream: answers once, with its next codes. With a text, it is a new stream."),
    _option("max_frames", "INT32", "With `pull`: of the response."),
    _option("cancel", "STRING", "Instead of a text: the id of the request or stream to cancel."),
)
TALKER_OUTPUTS = (
    TensorSpec("codes", "INT64", "The codes of the next frames.", (-1, CODEBOOKS)),
    TensorSpec("context_codes", "INT64", "Frames of the reference clip that precede these.", (-1, CODEBOOKS)),
    TensorSpec("segments", "INT32", "Segments of the speech; a long text has several."),
    TensorSpec("segment_end", "BOOL", "A segment ends with these frames; the codec starts anew after them."),
    TensorSpec("trim_silence", "BOOL", "Remove the silence at the start of the speech."),
    *_END_OUTPUTS,
)


def codec_inputs(window_frames: int) -> tuple[TensorSpec, ...]:
    return (
        TensorSpec("codes", "INT64", "Context frames, new frames, padding.", (window_frames, CODEBOOKS)),
        TensorSpec("context_frames", "INT64", "How many of the leading frames are context."),
    )


def codec_outputs(window_samples: int) -> tuple[TensorSpec, ...]:
    return (TensorSpec("samples", "FP32", "The samples of the new frames, then of the padding.", (window_samples,)),)


Arrays = Mapping[str, npt.NDArray[Any]]
# Files in the folder of a model's version.
SETTINGS, CODEC_FILE, CODEC_SHAPE = "settings.toml", "model.onnx", "codec.json"
_NUMPY_TYPES = {
    "BOOL": np.bool_,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT64": np.uint64,
    "FP32": np.float32,
    "FP64": np.float64,
    "STRING": np.object_,
}
# Triton has few codes, and its streams carry only the message. So the message begins with our own code. The first class
# that an error belongs to counts; others are internal.
_ERROR_CODES: tuple[tuple[type[OscineError], str], ...] = (
    (NotAllowedError, "UNSUPPORTED"),
    (NotFoundError, "NOT_FOUND"),
    (RequestError, "INVALID_ARG"),
    (OverloadedError, "UNAVAILABLE"),
    (EngineError, "UNAVAILABLE"),
)


def utils() -> Any:
    return importlib.import_module("triton_python_backend_utils")


@dataclass(frozen=True, slots=True)
class ModelInstance:
    """A place where Triton runs a model: its folder with this version's files, and which of its instances this process
    is."""

    folder: Path
    index: int

    @classmethod
    def of(cls, args: Mapping[str, str]) -> ModelInstance:
        """`args` is what Triton gives to `initialize`. Instances are named MODEL_GROUP_INDEX."""
        folder = Path(args["model_repository"]) / args["model_version"]
        return cls(folder, int(args["model_instance_name"].rpartition("_")[2]))


def read_tensors(request: Any, specs: Iterable[TensorSpec]) -> dict[str, Any]:
    """The given inputs by name: a plain value for a tensor of one element, a list for others. Strings are bytes."""
    specs = tuple(specs)
    check_parameters(request, specs)
    found: dict[str, Any] = {}
    for spec in specs:
        tensor = utils().get_input_tensor_by_name(request, spec.name)
        if tensor is None:
            continue
        array = tensor.as_numpy()
        if spec.dims != (1,):
            found[spec.name] = array.tolist()
        elif array.size != 1:
            raise FieldError(f"{spec.name} must have one element, got {array.size}", param=spec.name)
        else:
            found[spec.name] = array.reshape(-1)[0] if array.dtype == np.object_ else array.item()
    return found


def check_parameters(request: Any, specs: Iterable[TensorSpec]) -> None:
    """`generate_stream` turns a key of its JSON that names no input into a parameter. A misspelled name is refused."""
    unknown = next(iter(json.loads(request.parameters() or "{}")), None)
    if unknown is not None:
        name = shown_name(unknown)
        raise FieldError(unknown_choice("input", name, (spec.name for spec in specs)), param=name)


def triton_tensors(values: Mapping[str, Any], specs: Iterable[TensorSpec]) -> list[Any]:
    """Tensors of the backend. Scalars get the shape [1]."""
    tensors = []
    for spec in specs:
        array: npt.NDArray[Any] = np.asarray(values[spec.name], _NUMPY_TYPES[spec.datatype])
        tensors.append(utils().Tensor(spec.name, array.reshape(1) if array.ndim == 0 else array))
    return tensors


class ForwardedError(Exception):
    """An error of another model, as Triton reported it."""

    def __init__(self, triton_error: Any) -> None:
        super().__init__(triton_error.message())
        self.triton_error = triton_error


def failed_response(error: Exception) -> Any:
    if isinstance(error, ForwardedError):
        return utils().InferenceResponse(error=error.triton_error)
    found = api_error(error)
    name = next((name for kind, name in _ERROR_CODES if isinstance(error, kind)), "INTERNAL")
    message = f"{found.code}: {found.message}"
    return utils().InferenceResponse(error=utils().TritonError(message, getattr(utils().TritonError, name)))


class ResponseStream(Protocol):
    """The answer to one request: any number of responses, then the end."""

    def send(self, values: Mapping[str, Any], *, final: bool) -> None: ...

    def fail(self, error: Exception) -> None:
        """Ends the answer with an error."""

    def end(self) -> None:
        """Ends the answer of a request that was cancelled."""

    def is_cancelled(self) -> bool: ...


class DecoupledResponse:
    """The answer to a request of a decoupled model."""

    def __init__(self, request: Any, outputs: Iterable[TensorSpec]) -> None:
        self._request, self._sender, self._outputs = request, request.get_response_sender(), tuple(outputs)

    def send(self, values: Mapping[str, Any], *, final: bool) -> None:
        response = utils().InferenceResponse(output_tensors=triton_tensors(values, self._outputs))
        self._sender.send(response, flags=self._final_flag if final else 0)

    def fail(self, error: Exception) -> None:
        self._sender.send(failed_response(error), flags=self._final_flag)

    def end(self) -> None:
        self._sender.send(flags=self._final_flag)

    def is_cancelled(self) -> bool:
        return bool(self._request.is_cancelled())

    @property
    def _final_flag(self) -> int:
        return int(utils().TRITONSERVER_RESPONSE_COMPLETE_FINAL)
