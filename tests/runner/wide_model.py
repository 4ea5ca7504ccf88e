"""Models with the layers of a published checkpoint, but few of them: the shapes that the CUDA kernels take."""

from __future__ import annotations

import torch
from msgspec.structs import replace

from oscine.model.codec import Codec
from oscine.model.config import ModelConfig
from oscine.model.speech_model import SpeechModel
from tests.runner.tiny_model import set_random_weights

LAYERS = 2
WIDTHS = {"1b7": 2048, "0b6": 1024}  # of the talker
_HEADS = {"heads": 16, "kv_heads": 8, "head_dim": 128}


def wide_config(config: ModelConfig, size: str) -> ModelConfig:
    """The config of a tiny checkpoint, which has the published ids and codes, with published widths."""
    width = WIDTHS[size]
    talker = replace(config.talker.stack, width=width, inner=3 * width, layers=LAYERS, **_HEADS)
    predictor = replace(config.predictor.stack, width=1024, inner=3072, layers=LAYERS, **_HEADS)
    return replace(
        config,
        talker=replace(config.talker, stack=talker),
        predictor=replace(config.predictor, stack=predictor, talker_width=width),
    )


def wide_model(config: ModelConfig, size: str, dtype: torch.dtype, codec: Codec, device: str = "cuda") -> SpeechModel:
    """Random weights, rounded to bf16: the same in either dtype. `config` and `codec` are a tiny checkpoint's."""
    with torch.device(device):
        model = SpeechModel(wide_config(config, size))
    set_random_weights(model, dtype, seed=0)
    model.codec = codec
    return model.eval().requires_grad_(False)
