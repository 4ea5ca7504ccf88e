"""The model `oscine`: the whole engine, streaming samples. A model.py names this class for Triton."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oscine.commands.settings import load_settings
from oscine.deploy.tritonserver.backend import SETTINGS, DecoupledResponse, ModelInstance, read_tensors
from oscine.deploy.tritonserver.speech_host import SpeechHost
from oscine.deploy.tritonserver.tensors import SPEECH_INPUTS, SPEECH_OUTPUTS


class TritonPythonModel:
    def initialize(self, args: Mapping[str, str]) -> None:
        instance = ModelInstance.of(args)
        settings = load_settings(instance.folder / SETTINGS, {})
        self._host = SpeechHost(settings, instance.index, codec=True)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            response = DecoupledResponse(request, SPEECH_OUTPUTS)
            try:
                self._host.answer(request.request_id(), read_tensors(request, SPEECH_INPUTS), response)
            except Exception as error:
                response.fail(error)

    def finalize(self) -> None:
        self._host.stop()
