from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oscine.deploy.tritonserver.tensors import (
    SPEECH_INPUTS,
    SPEECH_OUTPUTS,
    DecoupledResponse,
    ForwardedError,
    ModelInstance,
    read_tensors,
)
from oscine.errors import FieldError, NotAllowedError, OverloadedError, RequestError
from tests.deploy.tritonserver.fake_backend import Request, TritonError, fake_backend


@pytest.fixture(autouse=True)
def backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", fake_backend({}))


def test_inputs_are_plain_values() -> None:
    request = Request({"text": np.array([b"Hi."], object), "seed": np.uint64(7), "speaker_embedding": [0.5, 1.0]})
    read = read_tensors(request, SPEECH_INPUTS)
    assert read == {"text": b"Hi.", "seed": 7, "speaker_embedding": [0.5, 1.0]} and type(read["seed"]) is int


def test_a_misspelled_key_of_generate_stream_is_refused() -> None:
    request = Request({"text": np.array([b"Hi."], object)}, parameters={"temprature": 0.5})
    with pytest.raises(FieldError, match="unknown input 'temprature'; did you mean 'temperature'"):
        read_tensors(request, SPEECH_INPUTS)
    with pytest.raises(FieldError, match="top_k must have one element, got 2"):
        read_tensors(Request({"top_k": [1, 2]}), SPEECH_INPUTS)


def test_a_response_has_every_output_in_its_type() -> None:
    request = Request({})
    values: dict[str, Any] = {"audio": np.arange(3, dtype=np.int16), "sample_rate": 24000}
    DecoupledResponse(request, SPEECH_OUTPUTS).send(
        {**values, "final": True, "finish_reason": "stop", "seed": 2**64 - 1}, final=True
    )
    (response,) = request.sender.wait()
    found = {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
    assert found["audio"].tolist() == [0, 1, 2] and found["audio"].dtype == np.int16
    assert (found["sample_rate"].dtype, found["seed"].dtype) == (np.int32, np.uint64)
    assert found["final"].tolist() == [True] and found["finish_reason"].tolist() == ["stop"]
    assert found["seed"].tolist() == [2**64 - 1]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (RequestError("no such voice", "voice"), "invalid", "bad_request: no such voice"),
        (OverloadedError("full", 2.0), "busy", "overloaded: full"),
        (NotAllowedError("not here"), "unsupported", "not_allowed: not here"),
        (ForwardedError(TritonError("bad_request: no", "invalid")), "invalid", "bad_request: no"),
        (KeyError("bug"), "internal", "internal_error: internal server error"),
    ],
)
def test_the_message_of_an_error_begins_with_its_code(error: Exception, code: str, message: str) -> None:
    request = Request({})
    DecoupledResponse(request, SPEECH_OUTPUTS).fail(error)
    answer = request.sender.error()
    assert answer.code == code and answer.message().startswith(message)


def test_an_instance_knows_its_folder_and_its_number(tmp_path: Path) -> None:
    args = {"model_repository": str(tmp_path), "model_version": "1", "model_instance_name": "oscine_0_3"}
    assert ModelInstance.of(args) == ModelInstance(tmp_path / "1", 3)
