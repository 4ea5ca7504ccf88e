"""`triton_python_backend_utils` without a server: requests and responses are plain objects, other models functions."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np

WAIT_S = 600.0  # only a failing test waits this long
FINAL = 1


class Tensor:
    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class TritonError(Exception):
    INVALID_ARG, NOT_FOUND, UNAVAILABLE, INTERNAL, UNSUPPORTED = "invalid", "missing", "busy", "internal", "unsupported"

    def __init__(self, message: str, code: str = INTERNAL) -> None:
        self._message, self.code = message, code

    def message(self) -> str:
        return self._message


class TritonModelException(Exception):  # noqa: N818 - Triton's name
    pass


class InferenceResponse:
    def __init__(self, output_tensors: list[Tensor] | None = None, error: TritonError | None = None) -> None:
        self._tensors, self._error = output_tensors or [], error

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error


class Sender:
    """Records one answer. Nothing may follow its end."""

    def __init__(self) -> None:
        self.responses: list[InferenceResponse] = []
        self.ended = threading.Event()

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        assert not self.ended.is_set(), "a response after the end"
        if response is not None:
            self.responses.append(response)
        if flags == FINAL:
            self.ended.set()

    def wait(self) -> list[InferenceResponse]:
        assert self.ended.wait(WAIT_S), "the answer never ended"
        return self.responses

    def values(self, name: str) -> list[np.ndarray]:
        """One output of every response."""
        found = [{tensor.name(): tensor for tensor in one.output_tensors()}[name] for one in self.wait()]
        return [tensor.as_numpy() for tensor in found]

    def error(self) -> TritonError:
        error = self.wait()[-1].error()
        assert error is not None
        return error


class Request:
    """A request as the server hands it to a model."""

    def __init__(self, inputs: Mapping[str, Any], request_id: str = "", parameters: Mapping[str, Any] = {}) -> None:
        self.inputs = {name: Tensor(name, np.array(value).reshape(-1)) for name, value in inputs.items()}
        self.sender, self.cancelled, self._id, self._parameters = Sender(), False, request_id, parameters

    def get_response_sender(self) -> Sender:
        return self.sender

    def request_id(self) -> str:
        return self._id

    def parameters(self) -> str:
        return json.dumps(self._parameters)

    def is_cancelled(self) -> bool:
        assert not self.sender.ended.is_set(), "the server has forgotten this request"
        return self.cancelled


Model = Callable[[dict[str, np.ndarray]], Iterator[InferenceResponse]]


def fake_backend(models: Mapping[str, Model]) -> ModuleType:
    """`models` answer the requests of business-logic scripting."""

    class InferenceRequest:
        def __init__(self, model_name: str, inputs: list[Tensor], requested_output_names: list[str]) -> None:
            self._name = model_name
            self._inputs = {tensor.name(): tensor.as_numpy() for tensor in inputs}

        def exec(self, decoupled: bool = False) -> Any:
            if self._name not in models:
                raise TritonModelException(f"model {self._name} is not ready")
            responses = models[self._name](self._inputs)
            return responses if decoupled else next(responses)

    module: Any = ModuleType("triton_python_backend_utils")
    module.Tensor, module.TritonError, module.TritonModelException = Tensor, TritonError, TritonModelException
    module.InferenceResponse, module.InferenceRequest = InferenceResponse, InferenceRequest
    module.TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL
    module.get_input_tensor_by_name = lambda request, name: request.inputs.get(name)
    module.get_output_tensor_by_name = lambda response, name: next(
        tensor for tensor in response.output_tensors() if tensor.name() == name
    )
    return module
