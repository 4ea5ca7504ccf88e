"""The client against a library that answers without a server. tests/tritonserver/ has the real one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from oscine.errors import OscineError
from oscine_bench.exchange import Exchange
from oscine_bench.received_audio import decode_audio
from oscine_bench.targets import Target
from oscine_bench.triton_client import TritonClient
from oscine_bench.workload import PlannedRequest

DATATYPES = {"text": "BYTES", "seed": "UINT64", "temperature": "FP64", "trim_silence": "BOOL", "voice": "BYTES"}


class InferenceServerException(Exception):  # noqa: N818 - the library's name
    def __init__(self, message: str, status: str | None = None) -> None:
        self._message, self._status = message, status

    def message(self) -> str:
        return self._message

    def status(self) -> str | None:
        return self._status


class Result:
    def __init__(self, samples: int, *, final: bool) -> None:
        self._values: dict[str, Any] = {
            "audio": np.arange(samples, dtype=np.int16),
            "final": np.array([final]),
            "sample_rate": np.array([24000], np.int32),
            "finish_reason": np.array([b"stop"], object),
        }

    def as_numpy(self, name: str) -> Any:
        return self._values[name]


class Library:
    """`answers`: what each stream yields; an exception is raised, None waits forever."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.cancelled = answers, 0
        self.sent: dict[str, Any] = {}

    def client(self, address: str) -> Any:
        return SimpleNamespace(
            stream_infer=self.stream_infer, get_model_metadata=self.metadata, close=lambda: asyncio.sleep(0)
        )

    async def metadata(self, model: str) -> Any:
        return SimpleNamespace(inputs=[SimpleNamespace(name=name, datatype=kind) for name, kind in DATATYPES.items()])

    def stream_infer(self, requests: AsyncIterator[dict[str, Any]]) -> Any:
        async def responses() -> AsyncIterator[Any]:
            async for request in requests:
                self.sent = {tensor.name: tensor.data for tensor in request["inputs"]}
                self.sent["model"] = request["model_name"]
            for answer in self.answers:
                if answer is None:
                    await asyncio.Event().wait()
                yield (None, answer) if isinstance(answer, Exception) else (answer, None)

        library, iterator = self, responses()

        class Responses:
            def __aiter__(self) -> AsyncIterator[Any]:
                return iterator

            def cancel(self) -> None:
                library.cancelled += 1

        return Responses()


class InferInput:
    def __init__(self, name: str, shape: list[int], datatype: str) -> None:
        self.name, self.shape, self.datatype = name, shape, datatype

    def set_data_from_numpy(self, array: np.ndarray) -> None:
        assert list(array.shape) == self.shape
        self.data = (self.datatype, array.tolist())


def exchange(monkeypatch: pytest.MonkeyPatch, library: Library, timeout_s: float = 60.0, **fields: Any) -> Exchange:
    module: Any = ModuleType("tritonclient.grpc.aio")
    module.InferenceServerClient, module.InferInput = library.client, InferInput
    module.InferenceServerException = InferenceServerException
    for name in ("tritonclient", "tritonclient.grpc"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["tritonclient"].grpc = sys.modules["tritonclient.grpc"]  # type: ignore[attr-defined]
    sys.modules["tritonclient.grpc"].aio = module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tritonclient.grpc.aio", module)

    async def send() -> Exchange:
        client = TritonClient(target(**fields), timeout_s=timeout_s)
        try:
            return await client.send(PlannedRequest("Hello.", 7, 0))
        finally:
            await client.close()

    return asyncio.run(send())


def target(**fields: Any) -> Target:
    return Target(url="triton://x", preset_name="triton", **fields)


def test_a_stream_becomes_an_exchange_with_audio(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(Result(1920, final=False), Result(960, final=False), Result(0, final=True))
    done = exchange(monkeypatch, library, voice="wren", extra={"temperature": 0.5, "trim_silence": False})
    assert done.failure is None and done.due_s <= done.sent_s <= done.arrived_s[0] <= done.end_s
    audio = decode_audio(done, target())
    assert (len(audio.pcm), audio.rate_hz, done.headers["x-finish-reason"]) == (2880, 24000, "stop")
    assert library.sent == {
        "model": "oscine",
        "text": ("BYTES", [b"Hello."]),
        "seed": ("UINT64", [7]),
        "voice": ("BYTES", [b"wren"]),
        "temperature": ("FP64", [0.5]),
        "trim_silence": ("BOOL", [False]),
    }
    assert library.cancelled == 0, "it has ended"


FAILURES = {
    "http_429": InferenceServerException("overloaded: The server is full. Retry in 1.5 s."),
    "http_400": InferenceServerException("bad_request: unknown voice"),
    "reported": InferenceServerException("Request for unknown model: 'x'"),
    "connect": InferenceServerException("failed to connect", "StatusCode.UNAVAILABLE"),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_errors_are_failures_of_the_known_kinds(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    done = exchange(monkeypatch, Library(FAILURES[kind]))
    assert done.failure is not None and (done.failure.kind, done.failure.message) == (kind, FAILURES[kind].message())
    assert done.headers.get("retry-after") == ("1.5" if kind == "http_429" else None)


def test_streams_that_do_not_end_well_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = exchange(monkeypatch, Library(Result(1920, final=False)))
    assert cut.failure is not None and cut.failure.kind == "cut"
    slow = Library(None)
    late = exchange(monkeypatch, slow, timeout_s=0.01)
    assert late.failure is not None and late.failure.kind == "timeout" and slow.cancelled == 1
    wrong = exchange(monkeypatch, Library(), extra={"top_q": 1})
    assert wrong.failure is not None and "has no input 'top_q' (it has: seed, temperature" in wrong.failure.message


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tritonclient", None)
    with pytest.raises(OscineError, match=r"pip install 'oscine\[triton-client\]'"):
        TritonClient(target())
