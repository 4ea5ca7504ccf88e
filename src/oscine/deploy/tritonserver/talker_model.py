"""The model `oscine_talker`: the engine without its codec, streaming codes. A model.py names this class for Triton."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oscine.commands.settings import load_settings
from oscine.deploy.tritonserver.backend import SETTINGS, DecoupledResponse, ModelInstance, read_tensors
from oscine.deploy.tritonserver.speech_host import SpeechHost
from oscine.deploy.tritonserver.tensors import TALKER_INPUTS, TALKER_OUTPUTS


class TritonPythonModel:
    def initialize(self, args: Mapping[str, str]) -> None:
        instance = ModelInstance.of(args)
        settings = load_settings(instance.folder / SETTINGS, {})
        self._host = SpeechHost(settings, instance.index, codec=False)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            response = DecoupledResponse(request, TALKER_OUTPUTS)
            try:
                tensors = read_tensors(request, TALKER_INPUTS)
                cancelled = tensors.pop("cancel", None)
                if cancelled is None:
                    self._host.answer(request.request_id(), tensors, response)
                else:
                    self._host.cancel(cancelled.decode(errors="replace"))
                    response.end()
            except Exception as error:
                response.fail(error)

    def finalize(self) -> None:
        self._host.stop()
