"""State of the codec as an exported graph has it: no counters in fp64, no branch that depends on a size.

`model/streaming.py` rotates keys by their absolute position, in fp64, and stores them rotated. Other runtimes lack
fp64 (TensorRT has none). RoPE depends on differences of positions only, so a graph stores keys without rotation and
rotates them by their place in the window, which is small and exact in fp32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from oscine.model.config import StackConfig
from oscine.model.layers import apply_rope, attention, rope_angles
from oscine.model.streaming import History


class ZeroHistory(History):
    """The history at the start of a stream: zeros before the first column; nothing is kept."""

    def __init__(self) -> None:
        super().__init__(None)

    def join(self, x: Tensor, length: int, dim: int = -1) -> Tensor:
        assert dim == -1, dim
        return F.pad(x, (length, 0))


class GraphHistory(History):
    """Takes the old tails as inputs and collects the new ones as outputs."""

    def join(self, x: Tensor, length: int, dim: int = -1) -> Tensor:
        assert self._past is not None
        joined = torch.cat((next(self._past), x), dim)
        self.tails.append(joined.narrow(dim, joined.shape[dim] - length, length))
        return joined


class RelativeCache:
    """A sliding window of causal attention whose positions count from the oldest key.

    Without `history` the rows are the whole stream; with it, the keys and values of the last `window - 1` frames come
    first, of which `frames` [batch, 1] (or all, if it is larger) have been decoded.
    """

    def __init__(
        self, config: StackConfig, rows: int, history: History | None = None, frames: Tensor | None = None
    ) -> None:
        self._history, self._past = history, config.window - 1 if config.window and history else 0
        self.positions = torch.zeros(1, 1, dtype=torch.int64)  # the stack's own rotation: none
        keys = torch.arange(self._past + rows)
        queries = keys[self._past :, None]
        seen = keys <= queries
        if config.window is not None:
            seen = seen & (keys > queries - config.window)
        self._mask = seen[None, None]
        if frames is not None:
            begun = keys >= self._past - frames
            self._mask = self._mask & begun[:, None, None, :]
        self._rope = rope_angles(keys[None], config.head_dim, config.theta, unbounded=False)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self._history is not None:
            k, v = self._history.join(k, self._past, dim=2), self._history.join(v, self._past, dim=2)
        cos, sin = self._rope
        q = apply_rope(q, cos[:, :, self._past :], sin[:, :, self._past :])
        return attention(q, apply_rope(k, cos, sin), v, mask=self._mask)
