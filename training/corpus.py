"""The teacher's speech as one long tensor on the training device. Crops are cut there, so steps load nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sizes import FRAME_SAMPLES
from teacher import LABEL_SAMPLES
from torch import Tensor

FRAME_LABELS = FRAME_SAMPLES // LABEL_SAMPLES


@dataclass(frozen=True, slots=True)
class Item:
    key: str
    text: str
    voice: str
    style: str
    first_frame: int  # in the whole corpus
    frames: int


@dataclass(frozen=True, slots=True)
class Crops:
    samples: Tensor  # [batch, frames * 1920] in -1..1
    phones: Tensor  # [batch, frames, 4]
    begins: Tensor  # [batch], whether the crop starts an utterance
    codes: Tensor  # [batch, frames, 16]


def shard_names(folder: Path, *, sounding: bool = False) -> list[str]:
    """Finished shards, in a fixed order. `sounding`: only shards with audio."""
    names = sorted(path.stem for path in folder.glob("*.jsonl"))
    return [name for name in names if not sounding or (folder / f"{name}.wave.npy").exists()]


class Corpus:
    def __init__(self, folder: Path, device: torch.device) -> None:
        names = shard_names(folder, sounding=True)
        if not names:
            raise FileNotFoundError(f"{folder} holds no finished shard of speech; run speech.py first")
        self.device = device
        self.items: list[Item] = []
        waves, phones, codes, frame = [], [], [], 0
        for name in names:
            wave = np.load(folder / f"{name}.wave.npy")
            waves.append(torch.from_numpy(wave))
            phones.append(torch.from_numpy(np.load(folder / f"{name}.phones.npy")))
            codes.append(torch.from_numpy(np.load(folder / f"{name}.codes.npy")))
            for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
                about = json.loads(line)
                self.items.append(Item(**about | {"first_frame": frame + about["first_frame"]}))
            frame += len(wave) // FRAME_SAMPLES
        self.wave = torch.cat(waves).view(-1, FRAME_SAMPLES).to(device)
        self.phones = torch.cat(phones).view(-1, FRAME_LABELS).to(device)
        self.codes = torch.cat(codes).to(device)
        assert len(self.wave) == len(self.phones) == frame, (len(self.wave), len(self.phones), frame)
        self._first = torch.tensor([item.first_frame for item in self.items], device=device)
        self._frames = torch.tensor([item.frames for item in self.items], device=device)
        self._weights = self._frames.float()

    @property
    def hours(self) -> float:
        return len(self.wave) * 0.08 / 3600

    def crops(self, batch: int, frames: int) -> Crops:
        """The first quarter of the batch starts at the beginning of an utterance, the rest anywhere in one. Silence
        follows the end of an utterance."""
        chosen = torch.multinomial(self._weights, batch, replacement=True)
        begins = torch.arange(batch, device=self.device) < batch // 4
        room = (self._frames[chosen] - frames).clamp(min=0) + 1
        start = (torch.rand(batch, device=self.device) * room).long()
        start = torch.where(begins, 0, start)
        # In a short utterance "anywhere" is its beginning; only the judged part differs.
        within = start[:, None] + torch.arange(frames, device=self.device)
        inside = within < self._frames[chosen][:, None]
        # After the end: the codes of the last frame, in which nothing is audible.
        places = self._first[chosen][:, None] + torch.minimum(within, self._frames[chosen][:, None] - 1)
        samples = self.wave[places].float() / 32767 * inside[..., None]
        phones = self.phones[places].long() * inside[..., None]
        return Crops(samples.flatten(1), phones, begins, self.codes[places].long())
