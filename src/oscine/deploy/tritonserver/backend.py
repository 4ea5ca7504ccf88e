"""Requests and responses of Triton's Python backend in plain Python.

`triton_python_backend_utils` exists only inside the server's processes, so it is imported on first use.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from oscine.deploy.tritonserver.tensors import TensorSpec
from oscine.errors import FieldError, shown_name, unknown_choice
from oscine.server.http.errors import api_error

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
# Triton has fewer codes than HTTP, and its streams carry only the message. So the message begins with our own code.
_ERROR_CODES = {403: "UNSUPPORTED", 404: "NOT_FOUND", 429: "UNAVAILABLE", 500: "INTERNAL", 503: "UNAVAILABLE"}


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
    code = getattr(utils().TritonError, _ERROR_CODES.get(found.status, "INVALID_ARG"))
    return utils().InferenceResponse(error=utils().TritonError(f"{found.code}: {found.message}", code))


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
