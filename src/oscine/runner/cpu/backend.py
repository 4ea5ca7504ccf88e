"""The backend for CPUs: the torch backend with its three expensive parts replayed from recorded steps.

The codec is always recorded. The talker's step and the predictor are recorded in fp32 only, the predictor only if its
lookup tables are small.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oscine.model.speech_model import SpeechModel
from oscine.runner.backend import DEFAULT_OPTIONS, BackendOptions
from oscine.runner.cpu.codec import CpuCodec
from oscine.runner.cpu.layers import CpuStack
from oscine.runner.cpu.predictor import MAX_TABLE_BYTES, CpuPredictor, table_bytes
from oscine.runner.kv_cache import DecodeCacheView
from oscine.runner.memory_budget import MemoryBudget
from oscine.runner.sampling import DrawTable
from oscine.runner.slot_codec import SlotCodec
from oscine.runner.torch.backend import TorchBackend


class CpuBackend(TorchBackend):
    name = "cpu"

    def __init__(self, model: SpeechModel, budget: MemoryBudget, options: BackendOptions = DEFAULT_OPTIONS) -> None:
        super().__init__(model, budget, options)
        rows, fp32 = budget.slots + 1, model.talker.dtype == torch.float32
        self.talker = CpuStack(model.talker.stack, rows) if fp32 else None
        small = fp32 and table_bytes(model) <= MAX_TABLE_BYTES
        self.predictor = CpuPredictor(model, rows) if small else None

    def _make_codec(self) -> SlotCodec:
        return CpuCodec(self.model.codec, self.budget.slots)

    def _talker_step(self, inputs: Tensor, cache: DecodeCacheView) -> Tensor:
        return self.talker.step(inputs, cache) if self.talker else super()._talker_step(inputs, cache)

    def _frame_codes(self, hidden: Tensor, first: Tensor, table: DrawTable, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        frame_codes = self.predictor.frame_codes if self.predictor else super()._frame_codes
        return frame_codes(hidden, first, table, uniforms)
