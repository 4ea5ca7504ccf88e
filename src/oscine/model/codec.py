"""The codec decoder: codes -> dequantizer -> windowed transformer -> upsampling -> vocoder -> waveform.

Every layer is causal, so decoding in pieces of any size is exact if each call gets the state of the previous one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oscine.audio.pcm import CODEBOOKS
from oscine.model.config import CODEC_FIRST_KERNEL, CODEC_KERNEL, RESIDUAL_DILATIONS, CodecConfig, CodecDecoderConfig
from oscine.model.layers import AttentionCache, Stack
from oscine.model.streaming import CausalConv, CausalUpsample, History, SlidingWindowCache, Snake, StreamState

_WHOLE_PIECE_FRAMES = 100  # bounds the memory of decode_whole; any number gives the same samples


class Dequantizer(nn.Module):
    """Sums 16 codebook entries. `prepare` folds codebooks, usage counts and projections into 16 tables."""

    tables: Tensor

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__()
        size, width = config.codebook_size, config.codebook_dim // 2
        self.codebook_size = size
        self.embedding_sum = nn.Parameter(torch.empty(CODEBOOKS, size, width))
        self.cluster_usage = nn.Parameter(torch.empty(CODEBOOKS, size))
        self.output_proj = nn.Parameter(torch.empty(2, config.codebook_dim, width, 1))  # semantic, acoustic

    def prepare(self) -> None:
        entries = self.embedding_sum.data / self.cluster_usage.data.clamp(min=1e-5)[..., None]
        semantic, acoustic = self.output_proj.data[..., 0]
        tables = torch.cat((entries[:1] @ semantic.T, entries[1:] @ acoustic.T))
        self.register_buffer("tables", tables.flatten(0, 1), persistent=False)  # [16 * size, codebook_dim]
        del self.embedding_sum, self.cluster_usage, self.output_proj

    def forward(self, codes: Tensor) -> Tensor:
        offsets = torch.arange(CODEBOOKS, device=codes.device) * self.codebook_size
        return F.embedding(codes + offsets, self.tables).sum(-2)


class ConvNeXt(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = CausalConv(width, width, CODEC_KERNEL, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor, history: History) -> Tensor:
        mixed = self.depthwise(x, history).transpose(1, 2)
        return x + (self.gamma * self.down(F.gelu(self.up(self.norm(mixed))))).transpose(1, 2)


class ResidualUnit(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.snake1, self.snake2 = Snake(channels), Snake(channels)
        self.conv1 = CausalConv(channels, channels, CODEC_KERNEL, dilation=dilation)
        self.conv2 = CausalConv(channels, channels, 1)

    def forward(self, x: Tensor, history: History) -> Tensor:
        wide = self.conv1(self.snake1(x), history)
        return x + self.conv2(self.snake2(wide), history)


class VocoderBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, rate: int) -> None:
        super().__init__()
        self.snake = Snake(inputs)
        self.upsample = CausalUpsample(inputs, outputs, 2 * rate, rate)
        self.units = nn.ModuleList(ResidualUnit(outputs, dilation) for dilation in RESIDUAL_DILATIONS)

    def forward(self, x: Tensor, history: History) -> Tensor:
        x = self.upsample(self.snake(x), history)
        for unit in self.units:
            x = unit(x, history)
        return x


class Codec(nn.Module):
    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.config = config
        decoder = config.decoder
        self.dequantizer = Dequantizer(decoder)
        self.pre_conv = CausalConv(decoder.codebook_dim, decoder.latent, CODEC_FIRST_KERNEL)
        self.stack_in = nn.Linear(decoder.latent, decoder.stack.width)
        self.stack = Stack(decoder.stack)
        self.stack_out = nn.Linear(decoder.stack.width, decoder.latent)
        self.upsamples = nn.ModuleList(
            CausalUpsample(decoder.latent, decoder.latent, ratio, ratio) for ratio in decoder.upsampling_ratios
        )
        self.convnexts = nn.ModuleList(ConvNeXt(decoder.latent) for _ in decoder.upsampling_ratios)
        widths = decoder.vocoder_widths
        self.vocoder_in = CausalConv(decoder.latent, widths[0], CODEC_KERNEL)
        self.blocks = nn.ModuleList(
            VocoderBlock(inputs, outputs, rate)
            for inputs, outputs, rate in zip(widths, widths[1:], decoder.upsample_rates, strict=False)
        )
        self.snake = Snake(widths[-1])
        self.vocoder_out = CausalConv(widths[-1], 1, CODEC_KERNEL)

    @torch.inference_mode()
    def decode(self, codes: Tensor, state: StreamState | None = None) -> tuple[Tensor, StreamState]:
        """codes [batch, frames, 16] -> samples [batch, frames * samples_per_frame] in -1..1, and the next state."""
        batch, frames, _ = codes.shape
        history = History(state.tails if state else None)
        done = state.frames if state else torch.zeros(batch, dtype=torch.int64, device=codes.device)
        cache = SlidingWindowCache(self.config.decoder.stack.window, done, frames, history)
        samples = self.vocode(self.latents(codes, cache, history), history)
        return samples, StreamState(done + frames, tuple(history.tails))

    def latents(self, codes: Tensor, cache: AttentionCache, history: History) -> Tensor:
        """codes [batch, frames, 16] -> the transformer's output, [batch, latent, frames]."""
        x = self.pre_conv(self.dequantizer(codes).transpose(1, 2), history)
        return self.stack_out(self.stack(self.stack_in(x.transpose(1, 2)), cache)).transpose(1, 2)

    def vocode(self, x: Tensor, history: History) -> Tensor:
        """Latents [batch, latent, frames] -> samples [batch, frames * samples_per_frame]."""
        for upsample, convnext in zip(self.upsamples, self.convnexts, strict=True):
            x = convnext(upsample(x, history), history)
        x = self.vocoder_in(x, history)
        for block in self.blocks:
            x = block(x, history)
        return self.vocoder_out(self.snake(x), history)[:, 0].clamp(-1, 1)

    def start(self, batch: int, device: torch.device) -> StreamState:
        """Returns the state before the first frame: zeros, which `decode` also assumes without a state."""
        _, state = self.decode(torch.zeros(batch, 1, CODEBOOKS, dtype=torch.int64, device=device))
        return StreamState(torch.zeros_like(state.frames), tuple(torch.zeros_like(tail) for tail in state.tails))

    def decode_whole(self, codes: Tensor) -> Tensor:
        """Gives the result of one `decode` of all frames, with bounded memory."""
        pieces, state = [], None
        for piece in codes.split(_WHOLE_PIECE_FRAMES, dim=1):
            samples, state = self.decode(piece, state)
            pieces.append(samples)
        return torch.cat(pieces, dim=1)
