"""The model `oscine`: the whole engine, streaming samples. A model.py names this class for Triton."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oscine.commands.settings import load_settings
from oscine.deploy.tritonserver.backend import (
    SETTINGS,
    DecoupledResponse,
    ModelInstance,
    ResponseStream,
    read_tensors,
)
from oscine.deploy.tritonserver.gauges import EngineGauges
from oscine.deploy.tritonserver.speech_host import SpeechHost
from oscine.deploy.tritonserver.tensors import ENGINE, SPEECH_INPUTS, SPEECH_OUTPUTS, TensorSpec


class TritonPythonModel:
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
