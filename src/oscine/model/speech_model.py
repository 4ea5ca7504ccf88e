"""All parts of one checkpoint, and the two sums that join them: prompt rows and frame rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from oscine.model.codec import Codec
from oscine.model.codec_encoder import CodecEncoder
from oscine.model.config import ModelConfig
from oscine.model.predictor import Predictor
from oscine.model.speaker_encoder import SpeakerEncoder
from oscine.model.talker import Talker
from oscine.types import NO_CODEC, SPEAKER, Prompt, reference_frame


class SpeechModel(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.talker = Talker(config.talker)
        self.predictor = Predictor(config.predictor)
        self.codec = Codec(config.codec)
        # Only Base clones voices; the other checkpoints never run the two encoders, so they are not loaded.
        base = config.speaker_encoder is not None
        self.speaker_encoder = SpeakerEncoder(config.speaker_encoder) if config.speaker_encoder else None
        self.codec_encoder = CodecEncoder(config.codec.encoder) if base else None

    @property
    def device(self) -> torch.device:
        return self.talker.device

    def frame_rows(self, codes: Tensor) -> Tensor:
        """codes [n, 16] -> the sum of their embeddings, [n, width], in one reduction (one rounding in bf16)."""
        first = self.talker.code_embedding(codes[:, :1])
        return torch.cat((first, self.predictor.embed(codes[:, 1:])), dim=1).sum(1)

    def prompt_rows(self, prompt: Prompt) -> Tensor:
        """[rows, width]: the talker's input for a prompt."""
        rows = self.talker.text_rows(self._ids(prompt.text_ids))
        codec_ids = self._ids(prompt.codec_ids)
        codec_rows = self.talker.code_embedding(codec_ids.clamp(min=0))
        codec_rows[codec_ids == NO_CODEC] = 0
        if prompt.speaker is not None:
            codec_rows[codec_ids == SPEAKER] = torch.tensor(prompt.speaker).to(codec_rows)
        if prompt.reference_codes is not None:
            is_frame = codec_ids <= reference_frame(0)
            frames = self.frame_rows(torch.tensor(prompt.reference_codes, device=self.device))
            codec_rows[is_frame] = frames[reference_frame(0) - codec_ids[is_frame]]
        return rows + codec_rows

    def trailing_rows(self, prompt: Prompt) -> Tensor:
        """[trailing + 1, width]: text rows added to the frames as they are made; the last one for ever."""
        pad = torch.tensor([self.config.tts_pad_id], device=self.device)
        return self.talker.text_rows(torch.cat((self._ids(prompt.trailing_ids), pad)))

    def _ids(self, ids: object) -> Tensor:
        return torch.as_tensor(ids, dtype=torch.int64, device=self.device)
