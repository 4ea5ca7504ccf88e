"""Utterances and their codes -> batches for the talker. Prompts are built by the package's own door (PromptBuilder), in
all the ways that a request may ask for: text whole or streamed, language named or not, an instruction or none.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import paths  # noqa: F401
import torch
from corpus import FRAME_LABELS, shard_names
from instructions import INSTRUCTIONS
from tokenizers import Tokenizer as BpeTokenizer
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from oscine.model.config import ModelConfig, read_config
from oscine.prompt.builder import PromptBuilder
from oscine.prompt.text import TextTurn, Tokenizer
from oscine.types import Prompt, SpeechRequest, TextMode

NO_PHONE = 255
AHEAD_FRAMES = 3  # of this frame and the two after it the phones are to be told
_POOL = 3072  # utterances that are sorted by length together
_VALIDATION = 64  # every so many-th utterance is never trained on


@dataclass(frozen=True, slots=True)
class Example:
    text: str
    voice: str
    style: str
    codes: npt.NDArray[np.uint8]  # [frames, 16]
    phones: npt.NDArray[np.uint8]  # [frames, 4]


def read_examples(folder: Path) -> list[Example]:
    examples = []
    for name in shard_names(folder, coded=True):
        codes = np.load(folder / f"{name}.codes.npy")
        phones = np.load(folder / f"{name}.phones.npy").reshape(-1, FRAME_LABELS)
        for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
            about = json.loads(line)
            span = slice(about["first_frame"], about["first_frame"] + about["frames"])
            examples.append(Example(about["text"], about["voice"], about["style"], codes[span], phones[span]))
    return examples


def split(examples: list[Example]) -> tuple[list[Example], list[Example]]:
    """To train on, and to watch."""
    watched = examples[::_VALIDATION]
    return [example for place, example in enumerate(examples) if place % _VALIDATION], watched


class LooseTokenizer(Tokenizer):
    """Now and then leaves out a merge, so that the pieces of words are learnt too. The role stays as it is."""

    def __init__(self, plain: Tokenizer, dropout: float) -> None:
        bpe = BpeTokenizer.from_str(plain._bpe.to_str())
        bpe.model.dropout = dropout
        super().__init__(bpe, plain.vocab_size)
        self._roles = {role: plain.encode_turn(role, "").role_ids for role in ("assistant", "user")}

    def encode_turn(self, role: str, text: str) -> TextTurn:
        return TextTurn(self._roles[role], self.encode(text))


@dataclass(frozen=True, slots=True)
class Batch:
    text_ids: Tensor  # [batch, rows]
    codec_ids: Tensor  # [batch, rows], -1: none (a frame's row, a row of text alone, or filling)
    codes: Tensor  # [frames, 16], of all utterances, one after the other
    frame_rows: Tensor  # [frames], the row of each frame in the flattened batch; the row before it is to foretell it
    last_rows: Tensor  # [batch], the row of each last frame, which is to foretell the end
    phones: Tensor  # [frames, 3 * 4]

    def to(self, device: torch.device) -> Batch:
        moved = (getattr(self, name).to(device, non_blocking=True) for name in self.__slots__)
        return Batch(*moved)

    def pin_memory(self) -> Batch:
        return Batch(*(getattr(self, name).pin_memory() for name in self.__slots__))


class Source(IterableDataset[Batch]):
    """Endless and different in every worker; the same for the same seed and number of workers, but for the merges that
    LooseTokenizer leaves out: its library draws them without a seed."""

    def __init__(self, folder: Path, examples: list[Example], *, rows: int, seed: int, plain: bool = False) -> None:
        """`folder` has the config and the vocabulary; `rows` bounds a batch; `plain`: whole text, nothing joined."""
        self._folder, self._examples, self._rows, self._seed, self._plain = folder, examples, rows, seed, plain

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        draw = random.Random(self._seed * 1000 + (worker.id if worker else 0))
        config = read_config(self._folder)
        tokenizer = Tokenizer.from_folder(self._folder)
        exact = PromptBuilder(config, tokenizer)
        loose = PromptBuilder(config, LooseTokenizer(tokenizer, 0.1))
        alike: dict[tuple[str, str], list[Example]] = {}
        for example in self._examples:
            alike.setdefault((example.voice, example.style), []).append(example)
        while True:
            pool = []
            for example in draw.choices(self._examples, k=min(_POOL, 8 * len(self._examples))):
                builder = exact if self._plain or draw.random() < 0.6 else loose
                joined = example if self._plain else _joined(example, alike[example.voice, example.style], draw)
                request = _request(joined, draw, self._plain)
                pool.append((builder.build(request), joined))
            yield from _batches(config, pool, self._rows, draw)


def _joined(example: Example, alike: list[Example], draw: random.Random) -> Example:
    """Sometimes two to six sentences as one text: longer speech, with pauses. A server's part of a long text has up to
    400 characters."""
    more = draw.choices((0, 1, 2, 3, 5), (0.75, 0.12, 0.06, 0.04, 0.03))[0]
    parts = [example, *draw.choices(alike, k=more)]
    return Example(
        " ".join(part.text for part in parts), example.voice, example.style,
        np.concatenate([part.codes for part in parts]), np.concatenate([part.phones for part in parts]),
    )  # fmt: skip


def _request(example: Example, draw: random.Random, plain: bool) -> SpeechRequest:
    asked = example.style != "plain" or (not plain and draw.random() < 0.06)
    mode: TextMode = "whole" if plain or draw.random() < 0.6 else "streaming"
    text = example.text
    if not plain and draw.random() < 0.1:
        text = text.rstrip(".")  # people leave it out
    return SpeechRequest(
        text=text,
        voice=example.voice,
        language="english" if draw.random() < 0.5 else "auto",
        instruct=draw.choice(INSTRUCTIONS[example.style]) if asked else None,
        text_mode=mode,
    )


def _batches(
    config: ModelConfig, pool: list[tuple[Prompt, Example]], rows: int, draw: random.Random
) -> Iterator[Batch]:
    pool = sorted(pool, key=lambda pair: pair[0].rows + len(pair[1].codes))
    groups: list[list[tuple[Prompt, Example]]] = [[]]
    for prompt, example in pool:
        longest = prompt.rows + len(example.codes)
        if groups[-1] and (len(groups[-1]) + 1) * longest > rows:
            groups.append([])
        groups[-1].append((prompt, example))
    draw.shuffle(groups)
    for group in groups:
        yield collate(config, group)


def collate(config: ModelConfig, group: list[tuple[Prompt, Example]]) -> Batch:
    longest = max(prompt.rows + len(example.codes) for prompt, example in group)
    # Narrow integers: batches travel through shared memory, of which a machine may have little.
    assert config.talker.text_vocab < 2**15, config.talker.text_vocab
    text = np.full((len(group), longest), config.tts_pad_id, np.int16)
    codec = np.full((len(group), longest), -1, np.int16)
    frame_rows, last_rows, codes, phones = [], [], [], []
    for place, (prompt, example) in enumerate(group):
        head, frames = prompt.rows, len(example.codes)
        text[place, :head], codec[place, :head] = prompt.text_ids, prompt.codec_ids
        trailing = prompt.trailing_ids[:frames]
        text[place, head : head + len(trailing)] = trailing
        rows = place * longest + head + np.arange(frames)
        frame_rows.append(rows)
        last_rows.append(rows[-1])
        codes.append(example.codes)
        beyond = np.full((AHEAD_FRAMES - 1, FRAME_LABELS), NO_PHONE, np.uint8)
        ahead = np.concatenate((example.phones, beyond))
        phones.append(np.concatenate([ahead[step : step + frames] for step in range(AHEAD_FRAMES)], axis=1))
    return Batch(
        torch.from_numpy(text), torch.from_numpy(codec), torch.from_numpy(np.concatenate(codes)),
        torch.from_numpy(np.concatenate(frame_rows).astype(np.int32)), torch.tensor(last_rows, dtype=torch.int32),
        torch.from_numpy(np.concatenate(phones)),
    )  # fmt: skip


def loader(source: Source, workers: int) -> Iterator[Batch]:
    pinned = torch.cuda.is_available()
    ahead = 3 if workers else None
    return iter(DataLoader(source, batch_size=None, num_workers=workers, pin_memory=pinned, prefetch_factor=ahead))
