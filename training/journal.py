"""Shared by the training scripts: a log of JSON lines, progress towards a limit, and atomic checkpoints."""

from __future__ import annotations

import json
import math
import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch


def set_seed(seed: int) -> torch.Generator:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(seed)


@dataclass(slots=True)
class Progress:
    """Progress of a run from 0 to 1: by steps or by time, whichever is further. Schedules follow it, so a run that is
    short of time still ends with a small learning rate. Schedules of a run without a time limit are reproducible."""

    steps: int
    limit_s: float | None = None
    step: int = 0
    before_s: float = 0.0  # spent in earlier runs that this one continues
    _begun: float = field(default_factory=time.monotonic)

    @property
    def spent_s(self) -> float:
        return self.before_s + time.monotonic() - self._begun

    @property
    def part(self) -> float:
        by_time = self.spent_s / self.limit_s if self.limit_s else 0.0
        return min(1.0, max(self.step / self.steps if self.steps else 1.0, by_time))

    @property
    def ended(self) -> bool:
        return self.part >= 1.0

    def rate(self, highest: float, *, lowest: float = 0.05, warm_steps: int = 200) -> float:
        """Cosine schedule with a warm-up; `lowest` is a fraction of `highest`."""
        cosine = 0.5 * (1 + math.cos(math.pi * self.part))
        return highest * min(1.0, (self.step + 1) / warm_steps) * (lowest + (1 - lowest) * cosine)


class Journal:
    """Writes means over the steps between two lines."""

    def __init__(self, path: Path, stage: str, every: int = 25) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._stage, self._every = path, stage, every
        self._sums: dict[str, tuple[torch.Tensor, int]] = {}
        self._count = 0
        self._last_s = time.monotonic()

    def note(self, progress: Progress, values: dict[str, torch.Tensor], **plain: Any) -> None:
        """`values` stay on the device until a line is written, so steps do not synchronize."""
        for name, value in values.items():
            before, times = self._sums.get(name, (0.0, 0))
            self._sums[name] = before + value.detach().float(), times + 1
        self._count += 1
        if self._count < self._every and not progress.ended:
            return
        means = {name: float(total) / times for name, (total, times) in self._sums.items()}
        now_s = time.monotonic()
        pace = self._count / max(now_s - self._last_s, 1e-9)
        self.write(step=progress.step, part=progress.part, spent_s=progress.spent_s, steps_per_s=pace, **plain, **means)
        self._sums, self._count, self._last_s = {}, 0, now_s

    def write(self, **values: Any) -> None:
        rounded = {name: round(value, 5) if isinstance(value, float) else value for name, value in values.items()}
        line = json.dumps({"stage": self._stage, **rounded})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(line, flush=True)


def save(path: Path, content: dict[str, Any]) -> None:
    part = path.with_suffix(".part")
    torch.save(content, part)
    os.replace(part, path)


def load(path: Path, device: torch.device) -> dict[str, Any] | None:
    if not path.exists():
        return None
    content: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    return content
