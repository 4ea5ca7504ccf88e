"""The teacher's speech as one long tensor on the training device. Crops are cut there, so steps load nothing. It can
grow while the teacher still speaks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import paths  # noqa: F401
import torch
from sizes import FRAME_SAMPLES
from teacher import LABEL_SAMPLES
from torch import Tensor

from oscine.audio.pcm import CODEBOOKS

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
        self.device, self._folder = device, folder
        self._names: set[str] = set()
        self.items: list[Item] = []
        self.wave = torch.zeros(0, FRAME_SAMPLES, dtype=torch.int16, device=device)
        self.phones = torch.zeros(0, FRAME_LABELS, dtype=torch.uint8, device=device)
        self.codes = torch.zeros(0, CODEBOOKS, dtype=torch.uint8, device=device)
        if not self.grow():
            raise FileNotFoundError(f"{folder} holds no finished shard of speech; run speech.py first")

    def grow(self) -> bool:
        """Adds the shards that were finished since the last call; whether there are any."""
        names = [name for name in shard_names(self._folder, sounding=True) if name not in self._names]
        if not names:
            return False
        waves, phones, codes, frame = [self.wave], [self.phones], [self.codes], len(self.wave)
        for name in names:
            waves.append(self._load(name, "wave").view(-1, FRAME_SAMPLES))
            phones.append(self._load(name, "phones").view(-1, FRAME_LABELS))
            codes.append(self._load(name, "codes"))
            for line in (self._folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
                about = json.loads(line)
                self.items.append(Item(**about | {"first_frame": frame + about["first_frame"]}))
            frame += len(waves[-1])
        self._names |= set(names)
        self.wave, self.phones, self.codes = torch.cat(waves), torch.cat(phones), torch.cat(codes)
        assert len(self.wave) == len(self.phones) == len(self.codes) == frame, (len(self.wave), len(self.phones), frame)
        self._first = torch.tensor([item.first_frame for item in self.items], device=self.device)
        self._frames = torch.tensor([item.frames for item in self.items], device=self.device)
        self._weights = self._frames.float()
        return True

    def _load(self, name: str, kind: str) -> Tensor:
        return torch.from_numpy(np.load(self._folder / f"{name}.{kind}.npy")).to(self.device)

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
