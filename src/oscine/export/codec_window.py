"""The codec decoder over windows of codes: each call gets a stream's earlier frames again, so no state is kept.

The transformer reads the whole window. The vocoder, which has 98 % of the work, sees only as many context frames as
its convolutions reach back. Rows are left-aligned: later columns never change earlier ones, so padding belongs on the
right, and a row that starts with its stream's first frame is exact.
"""

from __future__ import annotations

import math
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from oscine.errors import RequestError
from oscine.export.description import CodecWindow
from oscine.export.graph import RelativeCache, ZeroHistory
from oscine.export.onnx_file import Case, Graph, checkpoint_sha256, write_onnx
from oscine.frames import CODEBOOKS
from oscine.model.checkpoint import find_checkpoint
from oscine.model.codec import Codec
from oscine.model.config import CODEC_FIRST_KERNEL, CodecDecoderConfig
from oscine.model.streaming import History, SlidingWindowCache
from oscine.model.weights import load_model

KIND = "codec-window"
NEW_FRAMES = 8  # the engine's steady chunk
SAMPLE_TOLERANCE = 2.0**-15  # one step of 16-bit audio
_DEFAULT_WINDOWS = 4  # attention windows of left context: below 1e-4 at the published shapes with random weights
_CONTEXT_STREAMS = 4  # random streams that measure the error of the finite context


def vocoder_context_frames(config: CodecDecoderConfig) -> int:
    """How many frames the convolutions after the transformer reach back."""
    return math.ceil(sum(Fraction(one.past, one.columns) for one in config.conv_inputs[1:]))


def exact_context_frames(config: CodecDecoderConfig) -> int:
    """How many frames a sample depends on, its own not counted."""
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
        # A young row begins at its stream's first frame, where the vocoder's zero padding is right.
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

    left_context_frames: earlier frames that each call gets; None: exact, or four attention windows if that is less.
    new_frames: the usual number of new frames in a call; others work too.
    """
    folder = find_checkpoint(model)
    codec = load_model(folder, device=torch.device("cpu"), parts=["codec"]).codec
    return write_codec_window(codec, folder, Path(path), left_context_frames=left_context_frames, new_frames=new_frames)


def write_codec_window(
    codec: Codec, folder: Path, path: Path, *, left_context_frames: int | None, new_frames: int
) -> CodecWindow:
    context = _checked_context(codec.config.decoder, left_context_frames)
    if new_frames < 1:
        raise RequestError(f"new_frames must be at least 1, got {new_frames}", "new_frames")
    facts: dict[str, Any] = {
        "left_context_frames": context,
        "new_frames": new_frames,
        "exact_context_frames": exact_context_frames(codec.config.decoder),
        "samples_per_frame": codec.config.samples_per_frame,
        "sample_rate_hz": codec.config.sample_rate_hz,
        "codebooks": CODEBOOKS,
        "codebook_size": codec.config.decoder.codebook_size,
        "context_error": context_error(codec, context, new_frames),
    }
    graph = window_graph(codec, context, new_frames, facts)
    errors = write_onnx(graph, path, checkpoint_sha256(folder / "speech_tokenizer"))
    return CodecWindow(path=path, max_error=max(one.error for one in errors), **facts)


def _checked_context(config: CodecDecoderConfig, frames: int | None) -> int:
    exact, least = exact_context_frames(config), vocoder_context_frames(config)
    if frames is None:
        return min(exact, max(least, _DEFAULT_WINDOWS * config.stack.window))
    if not least <= frames <= exact:
        raise RequestError(
            f"the left context must be {least} frames (the vocoder's reach) to {exact} (exact), got {frames}",
            "left_context_frames",
        )
    return frames


def window_graph(codec: Codec, context: int, new_frames: int, facts: dict[str, Any]) -> Graph:
    batch, frames = torch.export.Dim("batch"), torch.export.Dim("frames", min=context + 1)
    return Graph(
        kind=KIND,
        module=CodecWindowModule(codec, context),
        arguments=(
            torch.zeros(2, context + new_frames + 1, CODEBOOKS, dtype=torch.int64),
            torch.tensor([[context], [0]]),
        ),
        dynamic=({0: batch, 1: frames}, {0: batch}),
        inputs={
            "codes": f"int64 [batch, {context} + N, {CODEBOOKS}]: context frames, N new frames, then padding",
            "context_frames": f"int64 [batch, 1]: how many leading frames are context, 0 to {context}",
        },
        outputs={"samples": "float32 [batch, N * samples_per_frame] in -1..1: the new frames"},
        cases=[
            window_case(codec, context, rows, new) for rows, new in ((1, new_frames), (1, 1), (3, new_frames), (2, 3))
        ],
        tolerance=SAMPLE_TOLERANCE,
        facts=facts,
    )


@torch.inference_mode()
def window_case(codec: Codec, context: int, rows: int, new_frames: int) -> Case:
    """Random codes, in rows of several ages, against our decoder from its start state."""
    generator = torch.Generator().manual_seed(rows)
    size = codec.config.decoder.codebook_size
    codes = torch.randint(0, size, (rows, context + new_frames, CODEBOOKS), generator=generator)
    ages = torch.tensor([[(context, 0, 5)[row % 3]] for row in range(rows)])
    samples = []
    for row, age in zip(codes, ages[:, 0].tolist(), strict=True):
        made = codec.decode(row[None, : age + new_frames])[0]
        samples.append(made[:, age * codec.config.samples_per_frame :])
    return Case(
        name=f"{rows} x {new_frames} frames",
        inputs={"codes": codes.numpy(), "context_frames": ages.numpy()},
        expected={"samples": torch.cat(samples).numpy()},
    )


@torch.inference_mode()
def context_error(codec: Codec, context: int, new_frames: int) -> float:
    """The largest difference between samples of the window and of the whole stream, for random codes."""
    config = codec.config.decoder
    frames = exact_context_frames(config) + config.stack.window + new_frames
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, config.codebook_size, (_CONTEXT_STREAMS, frames, CODEBOOKS), generator=generator)
    whole, window = (
        _last_samples(codec, part, new_frames) for part in (codes, codes[:, frames - context - new_frames :])
    )
    return float((whole - window).abs().max())


def _last_samples(codec: Codec, codes: Tensor, frames: int) -> Tensor:
    """Of the last frames, by our streaming decoder; the vocoder starts as late as it may."""
    config = codec.config.decoder
    history = History(None)
    done = torch.zeros(len(codes), dtype=torch.int64)
    latents = codec.latents(codes, SlidingWindowCache(config.stack.window, done, codes.shape[1], history), history)
    latents = latents[:, :, -(vocoder_context_frames(config) + frames) :]
    return codec.vocode(latents, History(None))[:, -frames * config.samples_per_frame :]
