"""A client for Oscine in Triton Inference Server, over gRPC: every request is a stream of its own on one connection."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from oscine.errors import OscineError
from oscine_bench.connections import Clock
from oscine_bench.exchange import Exchange, RequestFailure
from oscine_bench.targets import Target
from oscine_bench.workload import PlannedRequest

# Our models begin their messages with a code of the HTTP API; streams of Triton carry no other status.
_KINDS = {
    "overloaded": "http_429",
    "not_ready": "http_503",
    "engine_failed": "http_503",
    "bad_request": "http_400",
    "invalid_field": "http_400",
    "too_large": "http_413",
    "not_allowed": "http_403",
    "not_found": "http_404",
    "internal_error": "http_500",
}
_RETRY = re.compile(r"retry in ([\d.]+) s", re.IGNORECASE)
_NOT_INPUTS = ("model", "response_format", "events")


def _library() -> Any:
    try:
        import tritonclient.grpc.aio as library
    except ImportError as error:
        raise OscineError(f"tritonclient is not installed ({error}): pip install 'oscine[triton-client]'") from None
    return library


class TritonClient:
    def __init__(self, target: Target, *, timeout_s: float = 120.0, clock: Clock = time.perf_counter) -> None:
        self._library = _library()
        self._target, self._timeout_s, self._clock = target, timeout_s, clock
        self._client = self._library.InferenceServerClient(target.address.authority)
        self._datatypes: dict[str, str] = {}  # of the model's inputs

    async def send(self, request: PlannedRequest, due_s: float | None = None) -> Exchange:
        exchange = Exchange(request, self._clock() if due_s is None else due_s, self._clock())
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._receive(exchange, request)
        except TimeoutError:
            exchange.failure = RequestFailure("timeout", f"the response did not end within {self._timeout_s:g} s")
        except self._library.InferenceServerException as error:
            exchange.failure = _failure(error, exchange)
        except ValueError as error:
            exchange.failure = RequestFailure("malformed", str(error))
        exchange.end_s = self._clock()
        return exchange

    async def close(self) -> None:
        await self._client.close()

    async def _receive(self, exchange: Exchange, request: PlannedRequest) -> None:
        if not self._datatypes:
            self._datatypes = await self._read_datatypes()
        inputs = [self._tensor(name, value) for name, value in self._values(request).items()]

        async def requests() -> AsyncIterator[dict[str, Any]]:
            yield {"model_name": self._target.served_model, "inputs": inputs}

        responses, ended, failure = self._client.stream_infer(requests()), False, None
        try:
            exchange.sent_s = self._clock()
            async for result, failure in responses:
                now_s = self._clock()
                ended = failure is not None or bool(result.as_numpy("final")[0])
                if failure is not None:
                    continue
                if len(samples := result.as_numpy("audio")):
                    exchange.add(now_s, samples.tobytes())
                if ended:
                    exchange.status = 200
                    exchange.headers["x-sample-rate"] = str(result.as_numpy("sample_rate")[0])
                    exchange.headers["x-finish-reason"] = result.as_numpy("finish_reason")[0].decode()
            if failure is not None:
                raise failure
            if not ended:
                exchange.failure = RequestFailure("cut", "the stream ended without its last response")
        finally:
            # Triton 2.51 never unloads a model of which an ended stream was cancelled, so that one is read to its end.
            if not ended:
                responses.cancel()

    async def _read_datatypes(self) -> dict[str, str]:
        metadata = await self._client.get_model_metadata(self._target.served_model)
        return {tensor.name: tensor.datatype for tensor in metadata.inputs}

    def _values(self, request: PlannedRequest) -> dict[str, Any]:
        session = self._target.session(request)
        fields = {name: value for name, value in session.items() if name not in (*_NOT_INPUTS, "type")}
        return {"text": request.text, **fields}

    def _tensor(self, name: str, value: Any) -> Any:
        if name not in self._datatypes:
            inputs = ", ".join(sorted(self._datatypes))
            raise ValueError(f"the model {self._target.served_model!r} has no input {name!r} (it has: {inputs})")
        datatype = self._datatypes[name]
        if datatype == "BYTES":
            array: Any = np.array([str(value).encode()], np.object_)
        else:
            array = np.array(value, _numpy_type(datatype)).reshape(-1)
        tensor = self._library.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array)
        return tensor


def _numpy_type(datatype: str) -> np.dtype[Any]:
    """Converts a datatype: "FP64" -> float64, "BOOL" -> bool, "UINT64" -> uint64."""
    return np.dtype(datatype.lower().replace("fp", "float"))


def _failure(error: Any, exchange: Exchange) -> RequestFailure:
    message, status = str(error.message() or ""), str(error.status() or "")
    if "UNAVAILABLE" in status:
        return RequestFailure("connect", message)
    if found := _RETRY.search(message):
        exchange.headers["retry-after"] = found[1]
    return RequestFailure(_KINDS.get(message.partition(":")[0], "reported"), message)
