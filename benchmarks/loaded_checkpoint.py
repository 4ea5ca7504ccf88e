"""A checkpoint with what a runner needs: weights, tokenizer and prompt builder, without an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from oscine.model.config import read_config
from oscine.model.speech_model import SpeechModel
from oscine.model.weights import load_model
from oscine.prompt.builder import PromptBuilder
from oscine.prompt.tokenizer import Tokenizer
from oscine.request import SpeechRequest
from oscine.runner.memory_budget import MemoryBudget, plan_memory
from oscine.runner.runner import SlotAssignment
from oscine.runner.slot_runner import SlotRunner


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    model: SpeechModel
    tokenizer: Tokenizer
    builder: PromptBuilder

    @classmethod
    def load(cls, folder: Path, device: torch.device, dtype: torch.dtype, *, int8: bool = False) -> Self:
        model = load_model(folder, device=device, dtype=dtype, int8=int8)
        tokenizer = Tokenizer.from_folder(folder)
        return cls(model, tokenizer, PromptBuilder(read_config(folder), tokenizer))

    def budget(self, slots: int, positions: int, **more: Any) -> MemoryBudget:
        """Every slot can reach that position."""
        plan: dict[str, Any] = {"positions_total": slots * positions, "available_bytes": None, **more}
        element_bytes = self.model.talker.dtype.itemsize
        return plan_memory(
            self.model.config, slots=slots, positions_per_slot=positions, element_bytes=element_bytes, **plan
        )

    def assign(self, slot: int, request: SpeechRequest) -> SlotAssignment:
        return SlotAssignment(slot, self.builder.build(request), request.sampling(self.model.config.sampling))

    @contextmanager
    def speaking(
        self, runner: SlotRunner, slots: Iterable[int], request: Callable[[int], SpeechRequest]
    ) -> Iterator[list[int]]:
        """Streams in these slots, until they are released."""
        held = [*slots]
        for slot in held:
            runner.admit(self.assign(slot, request(slot)))
        yield held
        for slot in held:
            runner.release(slot)
