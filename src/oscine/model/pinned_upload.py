"""Copies tensors from mapped files to a GPU through pinned memory: one buffer is filled while the other one travels."""

from __future__ import annotations

import torch
from torch import Tensor

_BUFFER_BYTES = 32 * 2**20


class PinnedUpload:
    """A copy of pageable memory runs on one core; a buffer is filled by all of them. With a CPU as `device` it works
    the same, without pinned memory."""

    def __init__(self, device: torch.device, buffer_bytes: int = _BUFFER_BYTES) -> None:
        self._device, self._buffer_bytes = device, buffer_bytes
        cuda = device.type == "cuda"
        self._buffers = [torch.empty(buffer_bytes, dtype=torch.uint8, pin_memory=cuda) for _ in range(2)]
        self._sent = [torch.cuda.Event() if cuda else None for _ in self._buffers]
        self._pieces = 0

    def __call__(self, tensor: Tensor) -> Tensor:
        """The tensor on the device, in its own dtype. Only the current stream may use it at once."""
        uploaded = torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)
        sources = tensor.contiguous().flatten().view(torch.uint8).split(self._buffer_bytes)
        targets = uploaded.flatten().view(torch.uint8).split(self._buffer_bytes)
        for source, target in zip(sources, targets, strict=True):
            buffer, sent = self._buffers[self._pieces % 2], self._sent[self._pieces % 2]
            self._pieces += 1
            if sent is not None:
                sent.synchronize()
            buffer[: len(source)].copy_(source)
            target.copy_(buffer[: len(source)], non_blocking=True)
            if sent is not None:
                sent.record()
        return uploaded
