"""The models with an engine of this process; a model.py names the class of each for Triton.

`oscine` is the whole engine, streaming samples; `oscine_talker` the engine without its codec, streaming codes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from oscine.deploy.tritonserver.speech_host import SpeechHost
from oscine.deploy.tritonserver.tensors import (
    ENGINE,
    SETTINGS,
    SPEECH_INPUTS,
    SPEECH_OUTPUTS,
    TALKER,
    TALKER_INPUTS,
    TALKER_OUTPUTS,
    DecoupledResponse,
    ModelInstance,
    ResponseStream,
    TensorSpec,
    read_tensors,
    utils,
)
from oscine.server.http.metrics import ENGINE_GAUGES
from oscine.serving.settings import load_settings
from oscine.speech.models import EngineFigures


class EngineModel:
    name, codec = ENGINE, True
    inputs: tuple[TensorSpec, ...] = SPEECH_INPUTS
    outputs: tuple[TensorSpec, ...] = SPEECH_OUTPUTS

    def initialize(self, args: Mapping[str, str]) -> None:
        instance = ModelInstance.of(args)
        settings = load_settings(instance.folder / SETTINGS, {})
        self.host = SpeechHost(settings, instance.index, codec=self.codec)
        self._gauges = EngineGauges({"model": self.name, "instance": str(instance.index)}, self.host.figures)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            response = DecoupledResponse(request, self.outputs)
            try:
                self.answer(request.request_id(), read_tensors(request, self.inputs), response)
            except Exception as error:
                response.fail(error)

    def answer(self, request_id: str, tensors: dict[str, Any], response: ResponseStream) -> None:
        self.host.answer(request_id, tensors, response)

    def finalize(self) -> None:
        self._gauges.stop()
        self.host.stop()


class TalkerModel(EngineModel):
    name, codec = TALKER, False
    inputs, outputs = TALKER_INPUTS, TALKER_OUTPUTS

    def answer(self, request_id: str, tensors: dict[str, Any], response: ResponseStream) -> None:
        cancelled, pulled = tensors.pop("cancel", None), tensors.pop("pull", None)
        max_frames = tensors.pop("max_frames", sys.maxsize)
        if cancelled is not None:
            self.host.cancel(cancelled.decode(errors="replace"))
            response.end()
        elif pulled is not None:
            self.host.pull(pulled.decode(errors="replace"), tensors, max_frames, response)
        else:
            super().answer(request_id, tensors, response)


_INTERVAL_S = 0.5


class EngineGauges:
    """Sets the gauges twice a second: Triton answers a scrape without asking its models."""

    def __init__(self, labels: Mapping[str, str], figures: Callable[[], EngineFigures]) -> None:
        self._figures = figures
        kind = utils().MetricFamily.GAUGE
        # Kept: Triton shows a family only as long as its object lives.
        self._families = [
            utils().MetricFamily(name=name, description=text, kind=kind) for name, text, _ in ENGINE_GAUGES
        ]
        self._gauges = [family.Metric(labels=dict(labels)) for family in self._families]
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="oscine-gauges", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._gauges.clear()
        self._families.clear()  # now: Triton's process crashes if they live until it exits

    def _run(self) -> None:
        while not self._stopping.wait(_INTERVAL_S):
            figures = self._figures()
            for gauge, (_, _, value) in zip(self._gauges, ENGINE_GAUGES, strict=True):
                gauge.set(float(value(figures)))
