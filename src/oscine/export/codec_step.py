"""The codec decoder as a streaming step: new frames and the state of the streams in, samples and the next state out.

The state is that of `model/streaming.py`, except that keys are stored without RoPE (see graph.py). Zeros are the state
before the first frame.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from oscine.audio.pcm import CODEBOOKS
from oscine.export.codec_window import SAMPLE_TOLERANCE, SAMPLE_UNIT, random_codes
from oscine.export.graph import GraphHistory, RelativeCache
from oscine.export.onnx_file import Arrays, Graph, RunGraph, difference
from oscine.model.codec import Codec
from oscine.model.config import RESIDUAL_DILATIONS, CodecDecoderConfig

AGE = "decoded_frames"  # the one state that is no tail
NEXT = "next_"  # before the name of a state: the output that is its next value


class CodecStepModule(nn.Module):
    def __init__(self, codec: Codec) -> None:
        super().__init__()
        self.codec = codec

    def forward(
        self, codes: Tensor, decoded_frames: Tensor, tails: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """codes [batch, frames, 16], decoded_frames [batch, 1] -> samples, and the state after these frames."""
        frames, history = codes.shape[1], GraphHistory(tails)
        cache = RelativeCache(self.codec.config.decoder.stack, frames, history, decoded_frames)
        samples = self.codec.vocode(self.codec.latents(codes, cache, history), history)
        return samples, decoded_frames + frames, tuple(history.tails)


def tail_names(config: CodecDecoderConfig) -> list[str]:
    """Returns names in the order of the signal path, like the tails of a StreamState."""
    names = ["pre_conv"]
    for layer in range(config.stack.layers):
        names += [f"keys_{layer}", f"values_{layer}"]
    names += [f"upsample_{index}" for index in range(len(config.upsampling_ratios))]
    names.append("vocoder_in")
    for block in range(len(config.upsample_rates)):
        names.append(f"block_{block}_upsample")
        names += [f"block_{block}_dilation_{dilation}" for dilation in RESIDUAL_DILATIONS]
    return [*names, "vocoder_out"]


def codec_step_graph(codec: Codec) -> Graph:
    config = codec.config.decoder
    tails = codec.start(2, torch.device("cpu")).tails
    batch, frames = torch.export.Dim("batch"), torch.export.Dim("frames")
    shapes = state_shapes(codec)
    states = {name: f"{_dtype(name)} [batch, {', '.join(map(str, shape))}]" for name, shape in shapes.items()}
    return Graph(
        part="codec-step",
        module=CodecStepModule(codec),
        arguments=(torch.zeros(2, 3, CODEBOOKS, dtype=torch.int64), torch.tensor([[72], [5]]), tails),
        dynamic=({0: batch, 1: frames}, {0: batch}, tuple({0: batch} for _ in tails)),
        inputs={"codes": f"int64 [batch, frames, {CODEBOOKS}]: new frames of each stream", **states},
        outputs={
            "samples": f"float32 [batch, frames * {config.samples_per_frame}] in -1..1",
            **{NEXT + name: text for name, text in states.items()},
        },
        checks={
            "1 stream, pieces of 1 to 7 frames": partial(_stream_error, codec, [1, 1, 7, 2]),
            "3 streams, 0 to 75 frames old": partial(_batch_error, codec, [0, 2, 75]),
        },
        error_unit=SAMPLE_UNIT,
        tolerance=SAMPLE_TOLERANCE,
        facts={
            "states": shapes,
            "samples_per_frame": config.samples_per_frame,
            "sample_rate_hz": codec.config.sample_rate_hz,
            "codebooks": CODEBOOKS,
            "codebook_size": config.codebook_size,
        },
    )


def state_shapes(codec: Codec) -> dict[str, list[int]]:
    """Returns the shapes of the state of one stream."""
    names = tail_names(codec.config.decoder)
    tails = codec.start(1, torch.device("cpu")).tails
    return {AGE: [1], **{name: list(tail.shape[1:]) for name, tail in zip(names, tails, strict=True)}}


def start_states(shapes: dict[str, list[int]], batch: int) -> Arrays:
    """Returns the inputs before the first frame; `shapes` are the file's fact `states`."""
    return {name: np.zeros((batch, *shape), dtype=_dtype(name)) for name, shape in shapes.items()}


def _dtype(state: str) -> str:
    return "int64" if state == AGE else "float32"


def _step(run: RunGraph, codes: Tensor, states: Arrays) -> tuple[np.ndarray, Arrays]:
    outputs = run({"codes": codes.numpy(), **states})
    return outputs["samples"], {name: outputs[NEXT + name] for name in states}


@torch.inference_mode()
def _stream_error(codec: Codec, pieces: list[int], run: RunGraph) -> float:
    codes = random_codes(codec.config.decoder, 1, sum(pieces))
    states, samples = start_states(state_shapes(codec), 1), []
    for piece in codes.split(pieces, dim=1):
        made, states = _step(run, piece, states)
        samples.append(made)
    return difference(np.concatenate(samples, axis=1), codec.decode_whole(codes).numpy())


@torch.inference_mode()
def _batch_error(codec: Codec, ages: list[int], run: RunGraph) -> float:
    """Continues streams that began alone in one batch, and returns the difference."""
    new = 5
    codes = random_codes(codec.config.decoder, len(ages), max(ages) + new)
    alone, expected = [], []
    for row, age in zip(codes.split(1), ages, strict=True):
        start = start_states(state_shapes(codec), 1)
        alone.append(_step(run, row[:, :age], start)[1] if age else start)
        whole = codec.decode_whole(row[:, : age + new])
        expected.append(whole[:, age * codec.config.samples_per_frame :])
    states = {name: np.concatenate([one[name] for one in alone]) for name in alone[0]}
    following = torch.stack([row[age : age + new] for row, age in zip(codes, ages, strict=True)])
    samples, after = _step(run, following, states)
    assert after[AGE][:, 0].tolist() == [age + new for age in ages]
    return difference(samples, torch.cat(expected).numpy())
