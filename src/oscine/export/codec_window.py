"""The codec decoder over windows of codes: each call gets a stream's earlier frames again, so no state is kept.

The transformer reads the whole window. The vocoder, which has 98 % of the work, sees only as many context frames as
its convolutions reach back. Rows are left-aligned: later columns never change earlier ones, so padding belongs on the
right, and a row that starts with its stream's first frame is exact.
"""

from __future__ import annotations

import math
import os
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from oscine.audio.pcm import CODEBOOKS
from oscine.errors import RequestError
from oscine.export.description import CodecWindow
from oscine.export.graph import RelativeCache, ZeroHistory
from oscine.export.onnx_file import Graph, RunGraph, difference, write_onnx
from oscine.model.checkpoint import find_checkpoint
from oscine.model.codec import Codec
from oscine.model.config import CODEC_FIRST_KERNEL, CodecDecoderConfig
from oscine.model.streaming import History, SlidingWindowCache
from oscine.model.weights import load_model

NEW_FRAMES = 8  # the engine's steady chunk
SAMPLE_TOLERANCE = 2.0**-15
SAMPLE_UNIT = "samples are in -1..1, and this is one step of 16-bit audio"
_DEFAULT_WINDOWS = 4  # attention windows of left context; docs/guides/export.md has the error that remains
_CONTEXT_STREAMS = 4  # random streams that measure the error of the finite context


def vocoder_context_frames(config: CodecDecoderConfig) -> int:
    """Returns how many frames the convolutions after the transformer reach back."""
    return math.ceil(sum(Fraction(one.past, one.columns) for one in config.conv_inputs[1:]))


def exact_context_frames(config: CodecDecoderConfig) -> int:
    """Returns how many earlier frames a sample depends on."""
    attention = config.stack.layers * (config.stack.window - 1)
    return attention + CODEC_FIRST_KERNEL - 1 + vocoder_context_frames(config)


class CodecWindowModule(nn.Module):
    def __init__(self, codec: Codec, left_context_frames: int) -> None:
        super().__init__()
        self.codec = codec
        self.left_context_frames = left_context_frames
        self.vocoder_context = vocoder_context_frames(codec.config.decoder)
        assert left_context_frames >= self.vocoder_context

    def forward(self, codes: Tensor, context_frames: Tensor) -> Tensor:
        """codes [batch, left context + new, 16], context_frames [batch, 1] -> samples [batch, new * per frame]."""
        frames = codes.shape[1]
        new, history, reach = frames - self.left_context_frames, ZeroHistory(), self.vocoder_context
        cache = RelativeCache(self.codec.config.decoder.stack, frames)
        latents = self.codec.latents(codes, cache, history)
        # A row that begins with its stream's first frame needs the vocoder's zero padding.
        kept = (context_frames - reach).clamp(min=0) + torch.arange(reach + new)
        latents = latents.gather(2, kept[:, None].expand(-1, latents.shape[1], -1))
        samples, per_frame = self.codec.vocode(latents, history), self.codec.config.samples_per_frame
        return samples.gather(1, context_frames.clamp(max=reach) * per_frame + torch.arange(new * per_frame))


def export_codec_window(
    model: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    left_context_frames: int | None = None,
    new_frames: int = NEW_FRAMES,
) -> CodecWindow:
    """Writes codec_window.onnx of a checkpoint (folder, hub id or "demo") and returns its description.

    left_context_frames: earlier frames that each call gets; by default as many as are exact, at most four attention
    windows.
    new_frames: the usual number of new frames in a call; others work too.
    """
    folder = find_checkpoint(model)
    codec = load_model(folder, device=torch.device("cpu"), parts=["codec"]).codec
    graph = codec_window_graph(codec, left_context_frames, new_frames)
    return CodecWindow.of(write_onnx(graph, Path(path), folder / "speech_tokenizer"))


def codec_window_graph(codec: Codec, left_context_frames: int | None, new_frames: int) -> Graph:
    config = codec.config.decoder
    context = checked_context(config, left_context_frames)
    if new_frames < 1:
        raise RequestError(f"a window needs at least 1 new frame, got {new_frames}", "new_frames")
    batch, frames = torch.export.Dim("batch"), torch.export.Dim("frames", min=context + 1)
    example = torch.zeros(2, context + new_frames + 1, CODEBOOKS, dtype=torch.int64)
    return Graph(
        part="codec-window",
        module=CodecWindowModule(codec, context),
        arguments=(example, torch.tensor([[context], [0]])),
        dynamic=({0: batch, 1: frames}, {0: batch}),
        inputs={
            "codes": f"int64 [batch, {context} + N, {CODEBOOKS}]: context frames, N new frames, then padding",
            "context_frames": f"int64 [batch, 1]: how many leading frames are context, 0 to {context}",
        },
        outputs={"samples": f"float32 [batch, N * {config.samples_per_frame}] in -1..1: the new frames"},
        checks={
            f"{rows} x {new} frames": partial(_window_error, codec, context, rows, new)
            for rows, new in ((1, 1), (1, new_frames), (3, new_frames), (5, 3))
        },
        error_unit=SAMPLE_UNIT,
        tolerance=SAMPLE_TOLERANCE,
        facts={
            "left_context_frames": context,
            "new_frames": new_frames,
            "exact_context_frames": exact_context_frames(config),
            "samples_per_frame": config.samples_per_frame,
            "sample_rate_hz": codec.config.sample_rate_hz,
            "codebooks": CODEBOOKS,
            "codebook_size": config.codebook_size,
            "context_error": context_error(codec, context, new_frames),
        },
    )


def checked_context(config: CodecDecoderConfig, frames: int | None) -> int:
    exact, least = exact_context_frames(config), vocoder_context_frames(config)
    if frames is None:
        return min(exact, max(least, _DEFAULT_WINDOWS * config.stack.window))
    if not least <= frames <= exact:
        raise RequestError(
            f"the left context must be {least} frames (the vocoder's reach) to {exact} (exact), got {frames}",
            "left_context_frames",
        )
    return frames


@torch.inference_mode()
def _window_error(codec: Codec, context: int, rows: int, new_frames: int, run: RunGraph) -> float:
    """Compares rows of several ages with our decoder from its start state."""
    codes = random_codes(codec.config.decoder, rows, context + new_frames)
    ages = [(context, 0, 5)[row % 3] for row in range(rows)]
    expected = [
        _last_samples(codec, row[None, : age + new_frames], new_frames) for row, age in zip(codes, ages, strict=True)
    ]
    outputs = run({"codes": codes.numpy(), "context_frames": np.array(ages)[:, None]})
    return difference(outputs["samples"], torch.cat(expected).numpy())


def random_codes(config: CodecDecoderConfig, rows: int, frames: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, config.codebook_size, (rows, frames, CODEBOOKS), generator=generator)


@torch.inference_mode()
def context_error(codec: Codec, context: int, new_frames: int) -> float:
    """Returns the largest difference between samples of the window and of the whole stream, for random codes."""
    config = codec.config.decoder
    frames = exact_context_frames(config) + config.stack.window + new_frames
    codes = random_codes(config, _CONTEXT_STREAMS, frames)
    whole, window = (_last_samples(codec, part, new_frames) for part in (codes, codes[:, -context - new_frames :]))
    return float((whole - window).abs().max())


def _last_samples(codec: Codec, codes: Tensor, frames: int) -> Tensor:
    """Decodes the last frames with our own decoder; its vocoder, the costly part, starts as late as its reach
    allows."""
    config = codec.config.decoder
    history = History(None)
    done = torch.zeros(len(codes), dtype=torch.int64)
    latents = codec.latents(codes, SlidingWindowCache(config.stack.window, done, codes.shape[1], history), history)
    latents = latents[:, :, -(vocoder_context_frames(config) + frames) :]
    return codec.vocode(latents, History(None))[:, -frames * config.samples_per_frame :]
