"""The model `oscine_speech`: business-logic scripting (BLS) that fetches codes from `oscine_talker`, has `oscine_codec`
decode them, and streams samples. A model.py names this class for Triton.

Every stream has a thread, which waits for the other models most of the time. It asks the talker again and again, and
gets one response each time, with all codes that were made since: PulledStreams says why.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from oscine.audio.pcm import Samples
from oscine.config import TrimConfig
from oscine.deploy.tritonserver.speech_joiner import CodecShape, SpeechJoiner, TalkerPart, Window
from oscine.deploy.tritonserver.tensors import (
    CODEC,
    CODEC_SHAPE,
    SETTINGS,
    SPEECH_INPUTS,
    SPEECH_OUTPUTS,
    TALKER,
    TALKER_OUTPUTS,
    DecoupledResponse,
    ForwardedError,
    ModelInstance,
    check_parameters,
    utils,
)
from oscine.errors import EngineError
from oscine.server.http.logs import log_to_stderr
from oscine.serving.settings import load_settings

_log = logging.getLogger(__name__)
_TALKER_OUTPUTS = [spec.name for spec in TALKER_OUTPUTS]

TalkerValues = dict[str, npt.NDArray[Any]]  # one response of the talker


class JoinedSpeechModel:
    def initialize(self, args: Mapping[str, str]) -> None:
        folder = ModelInstance.of(args).folder
        settings = load_settings(folder / SETTINGS, {})
        log_to_stderr(settings.server.log_format, settings.server.log_level)
        self._trim = settings.engine.trim_silence
        self._shape = CodecShape(**json.loads((folder / CODEC_SHAPE).read_text(encoding="utf-8")))
        self._running: dict[threading.Thread, _SpeechStream] = {}

    def execute(self, requests: list[Any]) -> None:
        self._running = {thread: stream for thread, stream in self._running.items() if thread.is_alive()}
        for request in requests:
            stream = _SpeechStream(request, self._shape, self._trim)
            thread = threading.Thread(target=stream.run, name="oscine-speech", daemon=True)
            self._running[thread] = stream
            thread.start()

    def finalize(self) -> None:
        for stream in self._running.values():
            stream.stop()
        for thread in self._running:
            thread.join()


class _SpeechStream:
    """One request."""

    def __init__(self, request: Any, shape: CodecShape, trim: TrimConfig) -> None:
        self._request, self._shape, self._trim = request, shape, trim
        self._response = DecoupledResponse(request, SPEECH_OUTPUTS)
        self._talker = _TalkerStream(shape.new_frames)
        self._stopping = False

    def run(self) -> None:
        try:
            check_parameters(self._request, SPEECH_INPUTS)
            ended = self._speak()
        except Exception as error:
            self._talker.cancel()
            self._response.fail(error)
        else:
            if not ended:
                self._talker.cancel()
                self._response.end()

    def stop(self) -> None:
        """Ends the stream soon. May be called from any thread."""
        self._stopping = True

    def _speak(self) -> bool:
        """Returns whether the speech has ended; otherwise the client disconnected, or the model stops."""
        speech: SpeechJoiner | None = None
        for values in self._talker.responses(self._inputs(), self._is_left):
            if speech is None:
                segments, trim = int(values["segments"][0]), bool(values["trim_silence"][0])
                speech = SpeechJoiner(self._shape, _decode, self._trim, trim_silence=trim, segments=segments)
            final, segment_end = bool(values["final"][0]), bool(values["segment_end"][0])
            samples = speech.push(TalkerPart(values["codes"], values["context_codes"], segment_end, final))
            if len(samples) or final:
                end = {name: values[name][0] for name in ("final", "finish_reason", "seed")}
                self._response.send({"audio": samples, "sample_rate": self._shape.sample_rate_hz, **end}, final=final)
            if final:
                return True
        return False

    def _is_left(self) -> bool:
        return self._response.is_cancelled() or self._stopping

    def _inputs(self) -> list[Any]:
        given = ((spec.name, utils().get_input_tensor_by_name(self._request, spec.name)) for spec in SPEECH_INPUTS)
        # Copies: the request's own memory belongs to the server.
        return [utils().Tensor(name, tensor.as_numpy()) for name, tensor in given if tensor is not None]


class _TalkerStream:
    """A stream of the talker, whose codes are fetched."""

    def __init__(self, max_frames: int) -> None:
        self._id = secrets.token_hex(16)  # nobody else can cancel it
        self._max_frames = max_frames  # of a response: a client that leaves is noticed between responses

    def responses(self, inputs: list[Any], is_left: Callable[[], bool]) -> Iterator[TalkerValues]:
        """Yields responses up to the last one, or until the client has disconnected."""
        pull = [_text_tensor("pull", self._id), utils().Tensor("max_frames", np.array([self._max_frames], np.int32))]
        final = False
        while not final:
            responses = _request(TALKER, [*pull, *inputs], _TALKER_OUTPUTS, decoupled=True)
            response = _checked(next(responses))
            tensors = {tensor.name(): tensor.as_numpy().copy() for tensor in response.output_tensors()}
            # Triton has forgotten `responses` once it has answered this question: both go through one queue. If it were
            # deleted before, Triton would delete its arrays later, in a thread that does not hold the GIL.
            left = is_left()
            del responses, response
            if left:
                return
            inputs = []
            if tensors:  # none: there were no codes yet
                yield tensors
                final = bool(tensors["final"][0])

    def cancel(self) -> None:
        """Does nothing if the stream has ended. Never raises: the client has its answer, or disconnected."""
        try:
            for _ in _request(TALKER, [_text_tensor("cancel", self._id)], [], decoupled=True):
                pass
        except Exception as error:
            _log.warning("a stream of %s could not be cancelled: %s", TALKER, error)


def _decode(windows: Sequence[Window]) -> Sequence[Samples]:
    inputs = [
        utils().Tensor("codes", np.stack([window.codes for window in windows])),
        utils().Tensor("context_frames", np.array([[window.context_frames] for window in windows], np.int64)),
    ]
    response = _checked(_request(CODEC, inputs, ["samples"], decoupled=False))
    samples: Sequence[Samples] = utils().get_output_tensor_by_name(response, "samples").as_numpy()
    return samples


def _text_tensor(name: str, text: str) -> Any:
    return utils().Tensor(name, np.array([text.encode()], np.object_))


def _request(model: str, inputs: list[Any], outputs: list[str], *, decoupled: bool) -> Any:
    request = utils().InferenceRequest(model_name=model, requested_output_names=outputs, inputs=inputs)
    try:
        return request.exec(decoupled=decoupled)
    except utils().TritonModelException as error:
        raise EngineError(f"{model} cannot be reached: {error}") from None


def _checked(response: Any) -> Any:
    if response.has_error():
        raise ForwardedError(response.error())
    return response
