"""The model `oscine_codec` for servers without a backend for ONNX: the exported codec in onnxruntime.

Triton's dynamic batcher gathers the requests; this model decodes them in one call. A model.py names this class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from oscine.deploy.tritonserver.tensors import CODEC_FILE, ModelInstance, utils


class CodecModel:
    def initialize(self, args: Mapping[str, str]) -> None:
        import onnxruntime  # of the extra `export`

        options = onnxruntime.SessionOptions()
        # Idle threads of onnxruntime would spin on the cores that the talker needs.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            ModelInstance.of(args).folder / CODEC_FILE, options, providers=onnxruntime.get_available_providers()
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        codes = [_input(request, "codes") for request in requests]  # [rows, window frames, 16] each
        context = [_input(request, "context_frames") for request in requests]
        inputs = {"codes": np.concatenate(codes), "context_frames": np.concatenate(context)}
        (samples,) = self._session.run(["samples"], inputs)
        ends = np.cumsum([len(rows) for rows in codes])
        return [
            utils().InferenceResponse(output_tensors=[utils().Tensor("samples", piece)])
            for piece in np.split(samples, ends[:-1])
        ]


def _input(request: Any, name: str) -> Any:
    return utils().get_input_tensor_by_name(request, name).as_numpy()
