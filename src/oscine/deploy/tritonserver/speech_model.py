"""The model `oscine_speech`: business-logic scripting (BLS) that streams codes from `oscine_talker`, has `oscine_codec`
decode them, and streams samples. A model.py names this class for Triton.

Every stream has two threads, which wait for the other models most of the time. A stream outlives its requests to other
models, and the model outlives its streams: Triton 2.51 corrupts its memory otherwise.
"""

from __future__ import annotations

import json
import logging
import queue
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from oscine.commands.settings import load_settings
from oscine.config import TrimConfig
from oscine.deploy.tritonserver.backend import (
    CODEC_SHAPE,
    SETTINGS,
    DecoupledResponse,
    ForwardedError,
    ModelInstance,
    check_parameters,
    utils,
)
from oscine.deploy.tritonserver.cancellation import CancellationWatcher, WatchedResponse
from oscine.deploy.tritonserver.codec_windows import Window
from oscine.deploy.tritonserver.speech_joiner import CodecShape, SpeechJoiner, TalkerPart, merge_parts
from oscine.deploy.tritonserver.tensors import CODEC, SPEECH_INPUTS, SPEECH_OUTPUTS, TALKER, TALKER_OUTPUTS
from oscine.errors import EngineError
from oscine.frames import Samples
from oscine.server.logs import log_to_stderr

_log = logging.getLogger(__name__)

TalkerValues = dict[str, npt.NDArray[Any]]  # one response of the talker


class TritonPythonModel:
    def initialize(self, args: Mapping[str, str]) -> None:
        folder = ModelInstance.of(args).folder
        settings = load_settings(folder / SETTINGS, {})
        log_to_stderr(settings.server.log_format, settings.server.log_level)
        self._trim = settings.engine.trim_silence
        self._shape = CodecShape(**json.loads((folder / CODEC_SHAPE).read_text(encoding="utf-8")))
        self._watcher = CancellationWatcher()
        self._running: dict[threading.Thread, _SpeechStream] = {}

    def execute(self, requests: list[Any]) -> None:
        self._running = {thread: stream for thread, stream in self._running.items() if thread.is_alive()}
        for request in requests:
            stream = _SpeechStream(request, self._shape, self._trim, self._watcher)
            thread = threading.Thread(target=stream.run, name="oscine-speech", daemon=True)
            self._running[thread] = stream
            thread.start()

    def finalize(self) -> None:
        for thread, stream in self._running.items():
            stream.leave()
            thread.join()
        self._watcher.stop()


class _SpeechStream:
    """One request. A second thread reads from the talker: codes that arrive while others are decoded share a window."""

    def __init__(self, request: Any, shape: CodecShape, trim: TrimConfig, watcher: CancellationWatcher) -> None:
        self._request, self._shape, self._trim = request, shape, trim
        self._talker_id = secrets.token_hex(16)  # nobody else can cancel it
        self._received: queue.SimpleQueue[TalkerValues | Exception | None] = queue.SimpleQueue()
        self._left = False
        self._response = WatchedResponse(DecoupledResponse(request, SPEECH_OUTPUTS), watcher, self.leave)

    def run(self) -> None:
        reader = threading.Thread(target=self._read_talker, name="oscine-codes", daemon=True)
        reader.start()
        failure: Exception | None = None
        try:
            self._speak()
        except Exception as error:
            failure, self._left = error, True
        if self._left and reader.is_alive():
            self._cancel_talker()
        reader.join()
        if failure is not None:
            self._response.fail(failure)
        else:
            self._response.end()  # the client has left, or this does nothing

    def leave(self) -> None:
        """The client has left: ends the stream soon. May be called from any thread."""
        self._left = True
        self._received.put(None)

    def _speak(self) -> None:
        speech: SpeechJoiner | None = None
        while (received := self._take()) and not self._left:
            first, last = received[0], received[-1]
            if speech is None:
                segments, trim = int(first["segments"][0]), bool(first["trim_silence"][0])
                speech = SpeechJoiner(self._shape, _decode, self._trim, trim_silence=trim, segments=segments)
            pcm = [speech.push(part) for part in merge_parts(map(_part, received))]
            samples, final = np.concatenate(pcm), bool(last["final"][0])
            if len(samples) or final:
                end = {name: last[name][0] for name in ("final", "finish_reason", "seed")}
                self._response.send({"audio": samples, "sample_rate": self._shape.sample_rate_hz, **end}, final=final)

    def _take(self) -> list[TalkerValues]:
        """Waits for a response of the talker and takes those that are there, up to a window of frames: a client that
        leaves is noticed between windows. Empty: there are no more."""
        taken: list[TalkerValues] = []
        while not (taken and self._received.empty()) and len(taken) < self._shape.new_frames:
            one = self._received.get()
            if isinstance(one, Exception):
                raise one
            if one is None:
                self._received.put(None)  # for the next call, if this one has taken something
                break
            taken.append(one)
        return taken

    def _read_talker(self) -> None:
        try:
            check_parameters(self._request, SPEECH_INPUTS)
            for values in self._talker_responses():
                self._received.put(values)
                if self._left:
                    self._cancel_talker()  # once more: the first time may have been before the talker's start
            self._received.put(None)
        except Exception as error:
            self._received.put(error)

    def _talker_responses(self) -> Iterator[TalkerValues]:
        given = ((spec.name, utils().get_input_tensor_by_name(self._request, spec.name)) for spec in SPEECH_INPUTS)
        names = [spec.name for spec in TALKER_OUTPUTS]
        request = utils().InferenceRequest(
            model_name=TALKER,
            request_id=self._talker_id,
            requested_output_names=names,
            # Copies: the request's own memory belongs to the server.
            inputs=[utils().Tensor(name, tensor.as_numpy()) for name, tensor in given if tensor is not None],
        )
        for response in _execute(request, decoupled=True):
            if _checked(response).output_tensors():  # empty: the end of a cancelled request
                yield {name: utils().get_output_tensor_by_name(response, name).as_numpy() for name in names}

    def _cancel_talker(self) -> None:
        """Does nothing if the talker has ended. Never raises: the stream has its answer, or its client has left."""
        talker_id = utils().Tensor("cancel", np.array([self._talker_id.encode()], np.object_))
        request = utils().InferenceRequest(model_name=TALKER, requested_output_names=[], inputs=[talker_id])
        try:
            for _ in request.exec(decoupled=True):
                pass
        except Exception as error:
            _log.warning("a stream of %s could not be cancelled: %s", TALKER, error)


def _part(values: TalkerValues) -> TalkerPart:
    segment_end, final = bool(values["segment_end"][0]), bool(values["final"][0])
    return TalkerPart(values["codes"], values["context_codes"], segment_end, final)


def _decode(windows: Sequence[Window]) -> Sequence[Samples]:
    inputs = [
        utils().Tensor("codes", np.stack([window.codes for window in windows])),
        utils().Tensor("context_frames", np.array([[window.context_frames] for window in windows], np.int64)),
    ]
    request = utils().InferenceRequest(model_name=CODEC, requested_output_names=["samples"], inputs=inputs)
    response = _checked(_execute(request, decoupled=False))
    samples: Sequence[Samples] = utils().get_output_tensor_by_name(response, "samples").as_numpy()
    return samples


def _execute(request: Any, *, decoupled: bool) -> Any:
    try:
        return request.exec(decoupled=decoupled)
    except utils().TritonModelException as error:
        raise EngineError(f"{request.model_name()} cannot be reached: {error}") from None


def _checked(response: Any) -> Any:
    if response.has_error():
        raise ForwardedError(response.error())
    return response
