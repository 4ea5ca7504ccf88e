"""Business-logic scripting with a talker and a codec that are functions."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oscine.deploy.tritonserver.speech_model import JoinedSpeechModel
from tests.deploy.tritonserver.fake_backend import InferenceResponse, Request, Tensor, TritonError, fake_backend

SHAPE = {"left_context_frames": 3, "new_frames": 4, "samples_per_frame": 2, "sample_rate_hz": 24000}


class Models:
    """The talker has `count` frames, one per response; if `endless` it never has the last one."""

    def __init__(self, count: int = 6, *, endless: bool = False) -> None:
        self.count, self.endless = count, endless
        self.given = self.windows = 0
        self.stream_id, self.cancelled, self.waited = b"", threading.Event(), threading.Event()

    def talker(self, inputs: dict[str, np.ndarray]) -> Iterator[InferenceResponse]:
        if "cancel" in inputs:
            assert inputs["cancel"].tolist() == [self.stream_id]
            self.cancelled.set()
            return
        if "text" in inputs:
            assert inputs["text"].tolist() == [b"Hello."] and not self.stream_id
            self.stream_id = inputs["pull"][0]
        assert inputs["pull"].tolist() == [self.stream_id] and inputs["max_frames"].tolist() == [4]
        if self.given == self.count:
            self.waited.set()
            yield InferenceResponse()  # no codes yet
            return
        self.given += 1
        yield _talker_response(self.given, last=self.given == self.count and not self.endless)

    def codec(self, inputs: dict[str, np.ndarray]) -> Iterator[InferenceResponse]:
        codes, context = inputs["codes"], inputs["context_frames"]
        assert codes.shape[1:] == (7, 16) and context.shape == (len(codes), 1)
        self.windows += len(codes)
        rows = [row[start : start + 4, 0].repeat(2) / 1000 for row, (start,) in zip(codes, context, strict=True)]
        yield InferenceResponse([Tensor("samples", np.array(rows, np.float32))])


def _talker_response(code: int, *, last: bool) -> InferenceResponse:
    values: dict[str, Any] = {
        "codes": np.full((1, 16), code),
        "context_codes": np.zeros((0, 16), np.int64),
        "segments": np.array([1], np.int32),
        "segment_end": np.array([last]),
        "trim_silence": np.array([False]),
        "final": np.array([last]),
        "finish_reason": np.array([b"stop" if last else b""], object),
        "seed": np.array([9], np.uint64),
    }
    return InferenceResponse([Tensor(name, value) for name, value in values.items()])


@pytest.fixture
def model(tmp_path: Path) -> Iterator[JoinedSpeechModel]:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "settings.toml").write_text("")
    (tmp_path / "1" / "codec.json").write_text(json.dumps(SHAPE))
    model = JoinedSpeechModel()
    model.initialize(
        {"model_repository": str(tmp_path), "model_version": "1", "model_instance_name": "oscine_speech_0_0"}
    )
    yield model
    model.finalize()


def ask(
    model: JoinedSpeechModel,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_cancelled: Callable[[], bool] | None = None,
    **models: Any,
) -> Request:
    named = {f"oscine_{name}": function for name, function in models.items()}
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", fake_backend(named))
    request = Request({"text": np.array([b"Hello."], object)})
    if is_cancelled is not None:
        monkeypatch.setattr(request, "is_cancelled", is_cancelled)
    model.execute([request])
    return request


def test_every_frame_is_heard_once_and_in_order(model: JoinedSpeechModel, monkeypatch: pytest.MonkeyPatch) -> None:
    models = Models(count=30)
    request = ask(model, monkeypatch, talker=models.talker, codec=models.codec)
    heard = np.concatenate(request.sender.values("audio"))
    assert heard.tolist() == np.rint(np.arange(1, 31).repeat(2) / 1000 * 32767).astype(int).tolist()
    assert [bool(final[0]) for final in request.sender.values("final")][-1:] == [True]
    assert request.sender.values("finish_reason")[-1].tolist() == [b"stop"]
    assert {int(seed[0]) for seed in request.sender.values("seed")} == {9}
    assert models.windows == 30


def test_a_client_that_left_cancels_the_talker(model: JoinedSpeechModel, monkeypatch: pytest.MonkeyPatch) -> None:
    models = Models(endless=True)
    request = ask(model, monkeypatch, talker=models.talker, codec=models.codec)
    assert models.waited.wait(600)
    request.cancelled = True
    assert not any(response.has_error() for response in request.sender.wait()) and models.cancelled.is_set()


def test_unloading_ends_the_streams(model: JoinedSpeechModel, monkeypatch: pytest.MonkeyPatch) -> None:
    models = Models(endless=True)
    request = ask(model, monkeypatch, talker=models.talker, codec=models.codec)
    assert models.waited.wait(600)
    model.finalize()
    assert request.sender.ended.is_set() and models.cancelled.is_set()


def test_responses_of_the_talker_are_kept_until_triton_has_forgotten_them(
    model: JoinedSpeechModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It deletes what nobody else holds in a thread without the GIL, but before it answers about a cancellation."""
    models, alive = Models(count=30), 0

    class Responses:
        def __init__(self, inputs: dict[str, np.ndarray]) -> None:
            nonlocal alive
            alive += 1
            self._responses = models.talker(inputs)

        def __next__(self) -> InferenceResponse:
            return next(self._responses)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    asked = []

    def is_cancelled() -> bool:
        asked.append(alive)
        return False

    request = ask(model, monkeypatch, is_cancelled=is_cancelled, talker=Responses, codec=models.codec)
    request.sender.wait()
    assert asked == [1] * 30


def test_an_error_of_the_talker_is_the_answer(model: JoinedSpeechModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(inputs: dict[str, np.ndarray]) -> Iterator[InferenceResponse]:
        if "cancel" not in inputs:
            yield InferenceResponse(error=TritonError("bad_request: unknown voice", "invalid"))

    error = ask(model, monkeypatch, talker=refuse, codec=Models().codec).sender.error()
    assert (error.message(), error.code) == ("bad_request: unknown voice", "invalid")


def test_a_failure_of_the_codec_ends_the_talker_too(model: JoinedSpeechModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(inputs: dict[str, np.ndarray]) -> Iterator[InferenceResponse]:
        yield InferenceResponse(error=TritonError("out of memory"))

    models = Models(endless=True)
    request = ask(model, monkeypatch, talker=models.talker, codec=fail)
    assert request.sender.error().message() == "out of memory" and models.cancelled.is_set()


def test_a_model_that_is_not_loaded_is_named(model: JoinedSpeechModel, monkeypatch: pytest.MonkeyPatch) -> None:
    models = Models(endless=True)
    error = ask(model, monkeypatch, talker=models.talker).sender.error()
    assert error.message().startswith("engine_failed: oscine_codec cannot be reached") and error.code == "busy"
    assert "oscine_talker cannot be reached" in ask(model, monkeypatch, codec=models.codec).sender.error().message()
