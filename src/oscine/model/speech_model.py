"""All modules of one checkpoint: talker, code predictor, codec and encoders, and the sums that make prompt rows and
frame rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oscine.audio.pcm import CODEBOOKS
from oscine.model.codec import Codec
from oscine.model.config import ModelConfig, PredictorConfig, TalkerConfig
from oscine.model.encoders import CodecEncoder, SpeakerEncoder
from oscine.model.layers import Stack
from oscine.model.streaming import ContiguousKVCache
from oscine.types import SPEAKER, Prompt, reference_frame


class SpeechModel(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.talker = Talker(config.talker)
        self.predictor = Predictor(config.predictor)
        self.codec = Codec(config.codec)
        # Only Base checkpoints clone voices and load the two encoders.
        base = config.speaker_encoder is not None
        self.speaker_encoder = SpeakerEncoder(config.speaker_encoder) if config.speaker_encoder else None
        self.codec_encoder = CodecEncoder(config.codec.encoder) if base else None

    @property
    def device(self) -> torch.device:
        return self.talker.device

    def frame_rows(self, codes: Tensor) -> Tensor:
        """Sums the embeddings of codes [n, 16] in one reduction (one rounding in bf16): [n, width]."""
        first = self.talker.code_embedding(codes[:, :1])
        return torch.cat((first, self.predictor.embed(codes[:, 1:])), dim=1).sum(1)

    def prompt_rows(self, prompt: Prompt) -> Tensor:
        """Returns the talker's input for a prompt, [rows, width]. Row kinds are selected on the host: a device-side
        selection would make the host wait for all frames enqueued earlier."""
        codec_ids = prompt.codec_ids
        # All in one transfer to the device.
        known_ids, is_known, text_ids = self._to_device(
            np.stack((codec_ids.clip(min=0), codec_ids >= 0, prompt.text_ids))
        )
        codec_rows = self.talker.code_embedding(known_ids) * is_known[:, None]
        if prompt.speaker is not None:
            speaker_rows = self._to_device(np.flatnonzero(codec_ids == SPEAKER))
            codec_rows[speaker_rows] = self._to_device(prompt.speaker).to(codec_rows)
        if prompt.reference_codes is not None:
            reference_rows = np.flatnonzero(codec_ids <= reference_frame(0))
            codes = prompt.reference_codes[reference_frame(0) - codec_ids[reference_rows]]
            codec_rows[self._to_device(reference_rows)] = self.frame_rows(self._to_device(codes))
        return self.talker.text_rows(text_ids) + codec_rows

    def _to_device(self, values: npt.NDArray[Any]) -> Tensor:
        tensor = torch.tensor(values)
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else tensor


# --- The talker: maps text rows plus code rows to a hidden state and the logits of code 0, once per frame.


class Talker(nn.Module):
    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.config = config
        width = config.stack.width
        # The plain constructor draws random numbers, which on the meta device imports torch._dynamo (2 s, 70 MB).
        self.text_embedding = nn.Embedding.from_pretrained(torch.empty(config.text_vocab, config.text_width))
        self.text_in = nn.Linear(config.text_width, config.text_width)
        self.text_out = nn.Linear(config.text_width, width)
        self.code_embedding = nn.Embedding.from_pretrained(torch.empty(config.code_vocab, width))
        self.stack = Stack(config.stack)
        self.head = nn.Linear(width, config.code_vocab, bias=False)

    @property
    def device(self) -> torch.device:
        return self.code_embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.code_embedding.weight.dtype

    def text_rows(self, text_ids: Tensor) -> Tensor:
        return self.text_out(F.silu(self.text_in(self.text_embedding(text_ids))))

    def logits(self, hidden: Tensor) -> Tensor:
        return self.head(hidden).float()


# --- The code predictor: codes 1..15 of a frame, in order, from the talker's hidden state and code 0.
#
# The runner loops over the codebooks, since it samples between the predictor's passes.


class Predictor(nn.Module):
    def __init__(self, config: PredictorConfig) -> None:
        super().__init__()
        self.config = config
        width = config.stack.width
        # Stacked, so that one gather reads a whole frame. Entry j embeds code j + 1 in the talker's width.
        self.embeddings = nn.Parameter(torch.empty(CODEBOOKS - 1, config.vocab, config.talker_width))
        self.heads = nn.Parameter(torch.empty(CODEBOOKS - 1, config.vocab, width))  # in int8 a list of modules
        self.narrow = nn.Linear(config.talker_width, width) if config.talker_width != width else nn.Identity()
        self.stack = Stack(config.stack)

    def cache(self, batch: int) -> ContiguousKVCache:
        return ContiguousKVCache(self.config.stack, batch, CODEBOOKS, like=self.embeddings)

    def first(self, hidden: Tensor, code_rows: Tensor, cache: ContiguousKVCache) -> Tensor:
        """Returns the logits of code 1 from the talker's hidden state and its embedding of code 0, [batch, width]
        each."""
        rows = self.narrow(torch.stack((hidden, code_rows), dim=1))
        return self._logits(self.stack(rows, cache.prefill(2))[:, -1], 0)

    def next(self, book: int, codes: Tensor, cache: ContiguousKVCache) -> Tensor:
        """Returns the logits of code `book` + 1, given code `book` (1..14) as [batch]."""
        rows = self.narrow(F.embedding(codes, self.embeddings[book - 1]))[:, None]
        return self._logits(self.stack(rows, cache.append(book + 1))[:, 0], book)

    def embed(self, codes: Tensor) -> Tensor:
        """codes 1..15 as [batch, 15] -> [batch, 15, talker width]."""
        offsets = torch.arange(CODEBOOKS - 1, device=codes.device) * self.config.vocab
        return F.embedding(codes + offsets, self.embeddings.flatten(0, 1))

    def _logits(self, hidden: Tensor, head: int) -> Tensor:
        weights: Tensor | nn.Module = self.heads[head]
        return (weights(hidden) if isinstance(weights, nn.Module) else F.linear(hidden, weights)).float()
