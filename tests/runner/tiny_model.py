"""A model so small that Triton's interpreter runs a whole frame of it in about a second, and prompts for it."""

from __future__ import annotations

import numpy as np
import torch
from msgspec.structs import replace

from oscine.model.config import ModelConfig
from oscine.model.speech_model import SpeechModel
from oscine.types import Prompt
from random_codec import random_codec
from tests.runner.codec_streams import short_config

CODES, CODE_VOCAB, EOS = 16, 32, 24
TEXT_VOCAB = 32


def tiny_config(config: ModelConfig) -> ModelConfig:
    """The tiny checkpoint's config with fewer ids, layers and columns. The talker is wider than the predictor, so the
    projection between them exists."""
    stack = {"kv_heads": 1, "head_dim": 16, "inner": 40}
    talker = replace(
        config.talker,
        stack=replace(config.talker.stack, width=32, layers=2, heads=2, **stack),
        code_vocab=CODE_VOCAB,
        text_vocab=TEXT_VOCAB,
        text_width=8,
        eos_id=EOS,
        max_positions=256,
    )
    predictor_stack = replace(config.predictor.stack, width=24, layers=2, heads=1, **stack)
    predictor = replace(config.predictor, stack=predictor_stack, vocab=CODES, talker_width=32)
    return replace(config, talker=talker, predictor=predictor, codec=short_config(config.codec), tts_pad_id=3)


def tiny_model(config: ModelConfig, dtype: torch.dtype, seed: int = 0) -> SpeechModel:
    """The same weights, rounded to bf16, in either dtype. The codec is fp32."""
    model = SpeechModel(tiny_config(config))
    set_random_weights(model, dtype, seed)
    model.codec = random_codec(model.config.codec)
    return model.eval().requires_grad_(False)


def set_random_weights(model: SpeechModel, dtype: torch.dtype, seed: int) -> None:
    """Sets the weights of talker and predictor."""
    generator = torch.Generator(model.device).manual_seed(seed)
    for part in (model.talker, model.predictor):
        for name, parameter in part.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, device=model.device)
            if "norm" in name:
                noise = 1 + 0.1 * noise
            elif name.endswith("bias"):
                noise *= 0.05
            elif "embedding" in name:
                noise *= 0.25 if part is model.predictor else 1.0
            else:
                # Wide logits, so that near ties are rare.
                noise *= (8.0 if "head" in name else 1.0) * parameter.shape[-1] ** -0.5
            parameter.data = noise.bfloat16().to(dtype)
        for module in part.modules():
            if hasattr(module, "prepare"):
                module.prepare()


def random_prompt(rows: int, seed: int, *, trailing: int = 3, prefix_rows: int = 0) -> Prompt:
    rng = np.random.default_rng(seed)
    return Prompt(
        text_ids=rng.integers(0, TEXT_VOCAB, rows),
        codec_ids=rng.integers(0, CODE_VOCAB, rows),
        trailing_ids=rng.integers(0, TEXT_VOCAB, trailing),
        prefix_rows=prefix_rows,
    )
