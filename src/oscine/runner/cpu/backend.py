"""The backend for CPUs: the torch backend with its three expensive parts replayed from recorded steps.

The codec is always recorded; the talker's step and the predictor are, unless their weights are bf16. Beside int8
weights the codec's products are bf16, if this processor is faster at those. With two or more
threads the codec has its own: `launch` returns when the frame's codes are known, and the next frame's codes are
computed while this audio is.

A stream's codes do not depend on the other streams of its ticks. Sums of int8 products are exact. In fp32, products sum
a row in the same order for any number of rows from two on, and a single row gets a second one.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from oscine.model.device import has_bf16_products, set_own_threads
from oscine.model.int8 import Int8Linear
from oscine.model.speech_model import SpeechModel
from oscine.runner.backend import DEFAULT_OPTIONS, BackendOptions, CaptureProgress, SlotCodec
from oscine.runner.cpu.codec import CodecThread, CpuCodec, divide_threads
from oscine.runner.cpu.layers import CpuStack
from oscine.runner.cpu.predictor import CpuPredictor
from oscine.runner.cpu.steps import SameBitsLinear, by_columns
from oscine.runner.kv_cache import DecodeCacheView
from oscine.runner.memory_budget import MemoryBudget
from oscine.runner.runner import FrameOutput, Ticket
from oscine.runner.sampling import DrawTable
from oscine.runner.torch_backend import TorchBackend


@dataclass(frozen=True, slots=True)
class CpuTicket:
    output: FrameOutput  # its PCM is complete when `audio` is done
    audio: Future[float]
    with_prompts: bool = False

    def begun(self) -> bool:
        return True  # prefills and codes were computed before the launch returned

    def device_free(self) -> bool:
        return self.audio.done()

    def wait_device_free(self) -> None:
        self.audio.exception()  # waits; `collect` raises the error

    def ready(self) -> bool:
        return self.audio.done()


class CpuBackend(TorchBackend):
    name = "cpu"

    def __init__(self, model: SpeechModel, budget: MemoryBudget, options: BackendOptions = DEFAULT_OPTIONS) -> None:
        self._code_threads, self._codec_threads = divide_threads()
        rows, recorded = budget.slots + 1, model.talker.dtype == torch.float32
        if recorded:
            _give_same_bits(model)
        super().__init__(model, budget, options)
        self.talker = CpuStack(model.talker.stack, rows) if recorded else None
        self.predictor = CpuPredictor(model, rows) if recorded else None

    def _make_codec(self) -> SlotCodec:
        bf16 = isinstance(self.model.talker.head, Int8Linear) and has_bf16_products()
        codec = CpuCodec(self.model.codec, self.budget.slots, bf16=bf16)
        return CodecThread(codec, self._codec_threads) if self._codec_threads else codec

    def capture(self, progress: CaptureProgress) -> None:
        """Packs int8 matrices for several rows now: that takes seconds, for which the second listener would wait."""
        if self.budget.slots == 1:
            return
        stacks = (self.model.talker.stack, self.model.predictor)
        matrices = [part for stack in stacks for part in stack.modules() if isinstance(part, Int8Linear)]
        for done, matrix in enumerate(matrices, 1):
            matrix.packed()
            progress(done, len(matrices))

    @contextmanager
    def launching(self) -> Iterator[None]:
        if not isinstance(self.codec, CodecThread):
            yield
            return
        set_own_threads(self._code_threads)
        try:
            yield
        finally:
            self.codec.close()

    def _ticket(self, output: FrameOutput) -> Ticket:
        if isinstance(self.codec, CodecThread):
            return CpuTicket(output, self.codec.last_run)
        return super()._ticket(output)

    def collect(self, ticket: Ticket) -> FrameOutput:
        if not isinstance(ticket, CpuTicket):
            return super().collect(ticket)
        return replace(ticket.output, done_s=ticket.audio.result())

    def _talker_step(self, inputs: Tensor, cache: DecodeCacheView) -> Tensor:
        return self.talker.step(inputs, cache) if self.talker else super()._talker_step(inputs, cache)

    def _frame_codes(self, hidden: Tensor, first: Tensor, table: DrawTable, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        frame_codes = self.predictor.frame_codes if self.predictor else super()._frame_codes
        return frame_codes(hidden, first, table, uniforms)


def _give_same_bits(model: SpeechModel) -> None:
    """Makes the fp32 products of talker and predictor sum a row in one order, whatever rows are beside it. Those of
    their layers do so when they are recorded."""
    matrices = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    if isinstance(model.predictor.heads, nn.Parameter):
        matrices.append(model.predictor.heads)
    for weight in matrices:
        weight.data = by_columns(weight.data)
    for layer in (model.talker.head, model.talker.text_in, model.talker.text_out, model.predictor.narrow):
        if isinstance(layer, nn.Linear):
            layer.__class__ = SameBitsLinear
