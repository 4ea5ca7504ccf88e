"""A slot's codec state as pieces of contiguous memory, so that one kernel clears or restores any number of slots."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from oscine.runner.slot_codec import SlotCodec

_ZEROS, _KEEP = 0, -1  # instead of the address of a source


class CodecPieces:
    def __init__(self, codec: SlotCodec, device: torch.device) -> None:
        first, second = (list(_pieces(codec.state_views(slot))) for slot in (0, 1))
        self.max_bytes = max((size for _, size in first), default=0)
        rows = [(at, after - at, size // 4) for (at, size), (after, _) in zip(first, second, strict=True)]
        assert all(size % 4 == 0 for _, size in first), first
        self.table = torch.tensor(rows, dtype=torch.int64, device=device)  # see kernels.admit.start_codecs
        cleared = len(list(_pieces(codec.cleared_views(0))))
        self._silence = [_ZEROS] * cleared + [_KEEP] * (len(first) - cleared)

    def __len__(self) -> int:
        return len(self._silence)

    def sources(self, snapshot: tuple[Tensor, ...] | None) -> list[int]:
        """Returns the source address of each piece; no state means silence."""
        return self._silence if snapshot is None else [address for address, _ in _pieces(snapshot)]


def _pieces(views: tuple[Tensor, ...]) -> Iterator[tuple[int, int]]:
    """Address and bytes of each piece. A view of several dimensions is divided along the first one."""
    for view in views:
        for part in (view,) if view.dim() == 1 else view.unbind(0):
            assert part.is_contiguous(), (view.shape, view.stride())
            yield part.data_ptr(), part.nbytes
