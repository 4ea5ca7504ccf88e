"""All dimensions of the demo model, and the config files made from them.

`DEMO` is at most 32 MB, and fast enough for two slow CPU cores. `TOY` is for smoke.sh.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import paths  # noqa: F401  (puts src and tools on the path)

from checkpoint_shapes import ADDED_TOKENS, published_codec_config, published_config, special_ids

Config = dict[str, Any]

SPEAKERS = {"wren": 0, "finch": 1}  # name -> row of the teacher's voice table
CONTROL_IDS = 1024  # the official package never samples the last 1024 ids of the codec vocabulary
# Offsets of the published control ids after the codes: pad is 2148 = 2048 + 100, and so on.
_CONTROL_OFFSETS = {
    "codec_pad_id": 100, "codec_bos_id": 101, "codec_eos_token_id": 102, "codec_think_id": 106, "codec_nothink_id": 107,
    "codec_think_bos_id": 108, "codec_think_eos_id": 109,
}  # fmt: skip
_ENGLISH_OFFSET = 2
_FIRST_SPEAKER_OFFSET = 952

FRAME_SAMPLES = 1920
RATE_HZ = 24000


@dataclass(frozen=True, slots=True)
class Sizes:
    codebook_size: int = 64  # as in codes.py
    text_tokens: int = 2015  # BPE entries; a multiple of 64 with the 33 special tokens

    width: int = 320
    inner: int = 576
    layers: int = 6
    heads: int = 6  # head_dim and heads per KV head are powers of two, as the GPU kernels require
    kv_heads: int = 3
    head_dim: int = 64
    text_width: int = 128

    predictor_width: int = 256
    predictor_inner: int = 768
    predictor_layers: int = 1  # runs 15 times per frame; on a CPU a second layer adds a fifth to the frame
    predictor_heads: int = 4
    predictor_kv_heads: int = 2

    # The layers below 100 Hz know how phones follow each other; they are nearly free in time, but not in size.
    codebook_dim: int = 256  # after the output projections; the codebooks are half as wide
    latent: int = 384
    codec_width: int = 256
    codec_inner: int = 640
    codec_layers: int = 3
    codec_heads: int = 8
    codec_head_dim: int = 32
    codec_window: int = 8  # frames; training crops have 12
    # Channels 128, 64, 32, 16. All multiples of 8, for tensor cores.
    decoder_dim: int = 256

    # Of the config only: there is no encoder.
    encoder_filters: int = 24
    encoder_width: int = 192
    encoder_inner: int = 512
    encoder_layers: int = 3
    encoder_heads: int = 4
    encoder_head_dim: int = 32

    theta: float = 10000.0

    def __post_init__(self) -> None:
        assert self.heads % self.kv_heads == 0 and self.predictor_heads % self.predictor_kv_heads == 0, self
        for value in (self.head_dim, self.codec_head_dim, self.encoder_head_dim, self.heads // self.kv_heads):
            assert value & (value - 1) == 0, value

    @property
    def code_vocab(self) -> int:
        return self.codebook_size + CONTROL_IDS

    @property
    def text_vocab(self) -> int:
        return math.ceil((self.text_tokens + len(ADDED_TOKENS)) / 64) * 64

    def as_dict(self) -> Config:
        return asdict(self)


DEMO = Sizes()
TOY = Sizes(
    text_tokens=351, width=64, inner=96, layers=2, heads=2, kv_heads=1, head_dim=32, text_width=32,
    predictor_width=32, predictor_inner=48, predictor_layers=1, predictor_heads=1, predictor_kv_heads=1,
    codebook_dim=32, latent=32, codec_width=32, codec_inner=48, codec_layers=1, codec_heads=1, decoder_dim=48,
    encoder_filters=4, encoder_width=32, encoder_inner=48, encoder_layers=1, encoder_heads=1,
)  # fmt: skip
BY_NAME = {"demo": DEMO, "toy": TOY}


def _mrope_sections(head_dim: int) -> list[int]:
    """Read only by the official package. With equal positions any split is ordinary RoPE."""
    third = head_dim // 2 // 3
    return [head_dim // 2 - 2 * third, third, third]


def talker_config(sizes: Sizes, vocabulary: dict[str, int]) -> Config:
    """config.json. Version 4.57.2, so that the official loader keeps Qwen's split rule for text."""
    # "1b7" is the size whose CustomVoice follows instructions and has a projection into the predictor.
    config = published_config("1b7", "custom_voice", "4.57.2") | special_ids(len(vocabulary), vocabulary["assistant"])
    code = sizes.codebook_size
    talker = config["talker_config"]
    talker |= {name: code + offset for name, offset in _CONTROL_OFFSETS.items()}
    talker |= {
        "hidden_size": sizes.width, "intermediate_size": sizes.inner, "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads, "num_key_value_heads": sizes.kv_heads, "head_dim": sizes.head_dim,
        "text_hidden_size": sizes.text_width, "text_vocab_size": sizes.text_vocab, "vocab_size": sizes.code_vocab,
        "max_position_embeddings": 4096, "rope_theta": sizes.theta,
        "codec_language_id": {"english": code + _ENGLISH_OFFSET},
        "spk_id": {name: code + _FIRST_SPEAKER_OFFSET + row for name, row in SPEAKERS.items()},
        "spk_is_dialect": dict.fromkeys(SPEAKERS, False),
        "rope_scaling": {"interleaved": True, "mrope_section": _mrope_sections(sizes.head_dim),
                         "rope_type": "default", "type": "default"},
    }  # fmt: skip
    talker["code_predictor_config"] |= {
        "hidden_size": sizes.predictor_width, "intermediate_size": sizes.predictor_inner,
        "num_hidden_layers": sizes.predictor_layers, "layer_types": ["full_attention"] * sizes.predictor_layers,
        "num_attention_heads": sizes.predictor_heads, "num_key_value_heads": sizes.predictor_kv_heads,
        "head_dim": sizes.head_dim, "vocab_size": code, "rope_theta": sizes.theta,
    }  # fmt: skip
    return config


def codec_config(sizes: Sizes) -> Config:
    """speech_tokenizer/config.json"""
    config = published_codec_config("4.57.2")
    config["decoder_config"] |= {
        "latent_dim": sizes.latent, "codebook_dim": sizes.codebook_dim, "codebook_size": sizes.codebook_size,
        "semantic_codebook_size": sizes.codebook_size, "decoder_dim": sizes.decoder_dim,
        "hidden_size": sizes.codec_width, "intermediate_size": sizes.codec_inner, "head_dim": sizes.codec_head_dim,
        "num_attention_heads": sizes.codec_heads, "num_key_value_heads": sizes.codec_heads,
        "num_hidden_layers": sizes.codec_layers, "sliding_window": sizes.codec_window,
        "vector_quantization_hidden_dimension": sizes.codebook_dim,
    }  # fmt: skip
    config["encoder_config"] |= {
        "codebook_dim": sizes.codebook_dim // 2, "vector_quantization_hidden_dimension": sizes.codebook_dim // 2,
        "codebook_size": sizes.codebook_size, "hidden_size": sizes.encoder_width,
        "intermediate_size": sizes.encoder_inner, "head_dim": sizes.encoder_head_dim,
        "num_attention_heads": sizes.encoder_heads, "num_key_value_heads": sizes.encoder_heads,
        "num_hidden_layers": sizes.encoder_layers, "num_filters": sizes.encoder_filters, "num_quantizers": 16,
        "upsample_groups": sizes.encoder_width,
    }  # fmt: skip
    return config
