"""The model `oscine_talker`: the engine without its codec, streaming codes. A model.py names this class for Triton."""

from __future__ import annotations

from oscine.deploy.tritonserver import engine_model
from oscine.deploy.tritonserver.tensors import TALKER, TALKER_INPUTS, TALKER_OUTPUTS


class TritonPythonModel(engine_model.TritonPythonModel):
    name, codec = TALKER, False
    inputs, outputs = TALKER_INPUTS, TALKER_OUTPUTS
