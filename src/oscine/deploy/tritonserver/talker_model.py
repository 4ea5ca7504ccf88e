"""The model `oscine_talker`: the engine without its codec, streaming codes. A model.py names this class for Triton."""

from __future__ import annotations

import sys
from typing import Any

from oscine.deploy.tritonserver import engine_model
from oscine.deploy.tritonserver.backend import ResponseStream
from oscine.deploy.tritonserver.tensors import TALKER, TALKER_INPUTS, TALKER_OUTPUTS


class TritonPythonModel(engine_model.TritonPythonModel):
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
