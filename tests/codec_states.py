"""Codec states of several streams as one batch, and back; and the official package's way to decode."""

from collections.abc import Sequence

import torch
from torch import Tensor

from oscine.model.codec import Codec
from oscine.model.streaming import StreamState
from tests.reference.codec_stream import OFFICIAL_CONTEXT_FRAMES, OFFICIAL_WINDOW_FRAMES


def stack_states(states: Sequence[StreamState]) -> StreamState:
    tails = zip(*(state.tails for state in states), strict=True)
    return StreamState(torch.cat([state.frames for state in states]), tuple(torch.cat(tail) for tail in tails))


def select_rows(state: StreamState, index: Tensor) -> StreamState:
    return StreamState(state.frames[index], tuple(tail[index] for tail in state.tails))


def decode_official(codec: Codec, codes: Tensor) -> Tensor:
    """Windows of 300 frames, each with 25 frames of context. Up to 300 frames it equals
    `decode_whole`; beyond, attention is cut at each window."""
    pieces = []
    for begin in range(0, codes.shape[1], OFFICIAL_WINDOW_FRAMES):
        context = min(begin, OFFICIAL_CONTEXT_FRAMES)
        samples, _ = codec.decode(codes[:, begin - context : begin + OFFICIAL_WINDOW_FRAMES])
        pieces.append(samples[:, context * codec.config.samples_per_frame :])
    return torch.cat(pieces, dim=1)
