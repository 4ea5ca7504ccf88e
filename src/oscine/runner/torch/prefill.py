"""A prompt's rows into the pages of its slot. Here in plain PyTorch; kernel_prefill.py is the fast one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from oscine.model.speech_model import SpeechModel
from oscine.runner.kv_cache import PagedKVCache, PrefillCacheView


class Prefill(Protocol):
    sizes: int  # graphs to capture

    def capture(self, progress: Callable[[int, int], None]) -> None: ...

    def add(self, rows: Tensor, first: int, page_row: Tensor) -> None:
        """rows [n, width] at positions first.. of the slot whose pages are page_row; all before are filled or added."""

    def flush(self) -> None:
        """All that was added is enqueued. Before, a slot may neither run nor give its pages back."""


class TorchPrefill:
    sizes = 0

    def __init__(self, model: SpeechModel, kv: PagedKVCache) -> None:
        self._model, self._kv = model, kv

    def capture(self, progress: Callable[[int, int], None]) -> None:
        """Nothing: plain PyTorch runs as it is."""

    def add(self, rows: Tensor, first: int, page_row: Tensor) -> None:
        self._model.talker.stack(rows[None], PrefillCacheView(self._kv, page_row, first, len(rows)))

    def flush(self) -> None:
        """Nothing: rows are not packed here, so what fails in a prompt is that prompt's alone."""
