"""Builds batches for the talker from utterances and their codes. The package's own PromptBuilder makes the prompts, in
all variants of a request: whole or streaming text, with or without a language, with or without an instruction.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
import numpy.typing as npt
import paths  # noqa: F401
import torch
from codes import with_silence
from corpus import FRAME_LABELS, shard_names
from instructions import INSTRUCTIONS
from teacher import UNKNOWN_WORD
from tokenizers import Tokenizer as BpeTokenizer
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from oscine.model.config import ModelConfig, read_config
from oscine.prompt.builder import PromptBuilder
from oscine.prompt.tokenizer import TextTurn, Tokenizer
from oscine.request import SpeechRequest, TextMode
from oscine.types import Prompt

NO_PHONE, NO_WORD = 255, -1
AHEAD_FRAMES = 3  # the phone head predicts this frame and the two after it
# Streaming text: a frame gets one more token, so speech waits until the first words have arrived, in silence that the
# server trims. texts of README.md ("Streaming text") have the figures for it.
LEAD_FRAMES = 5
_POOL = 3072  # utterances sorted by length together
_ROUNDED_ROWS = 16
_VALIDATION = 64  # one text in 64 is held out for validation


@dataclass(frozen=True, slots=True)
class Example:
    text: str
    voice: str
    style: str
    codes: npt.NDArray[np.uint8]  # [frames, 16]
    phones: npt.NDArray[np.uint8]  # [frames, 4]
    words: npt.NDArray[np.int16]  # [frames], index of the spoken word (in a pause: of the next one), or NO_WORD


def read_examples(folder: Path) -> list[Example]:
    return [example for name in shard_names(folder) for example in read_shard(folder, name)]


def read_shard(folder: Path, name: str) -> list[Example]:
    examples = []
    codes = np.load(folder / f"{name}.codes.npy")
    phones = np.load(folder / f"{name}.phones.npy").reshape(-1, FRAME_LABELS)
    words = np.load(folder / f"{name}.words.npy").reshape(-1, FRAME_LABELS)
    for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        about = json.loads(line)
        span = slice(about["first_frame"], about["first_frame"] + about["frames"])
        said = _frame_words(words[span])
        examples.append(Example(about["text"], about["voice"], about["style"], codes[span], phones[span], said))
    return examples


def _frame_words(labels: npt.NDArray[np.uint8]) -> npt.NDArray[np.int16]:
    """[frames, 4] -> [frames]: the word in the middle of each frame, or the next word in a pause."""
    middle = labels[:, FRAME_LABELS // 2]
    following = NO_WORD
    words = np.empty(len(middle), np.int16)
    for frame in range(len(middle) - 1, -1, -1):
        following = following if middle[frame] == UNKNOWN_WORD else int(middle[frame])
        words[frame] = following
    return words


def split(examples: list[Example]) -> tuple[list[Example], list[Example]]:
    """Training and validation examples. All recordings of a text are on the same side."""
    sides: tuple[list[Example], list[Example]] = [], []
    for example in examples:
        sides[crc32(example.text.encode()) % _VALIDATION == 0].append(example)
    return sides


class WordTokenizer(Tokenizer):
    """Records the word index of each token of the last text. `dropout` (BPE dropout) skips some merges, so that smaller
    pieces of words are learned too; role tokens are not affected."""

    def __init__(self, plain: Tokenizer, dropout: float | None = None) -> None:
        bpe = BpeTokenizer.from_str(plain._bpe.to_str())
        bpe.model.dropout = dropout
        super().__init__(bpe, plain.vocab_size)
        self._roles = {role: plain.encode_turn(role, "").role_ids for role in ("assistant", "user")}
        self.words: list[int] = []

    def encode_turn(self, role: str, text: str) -> TextTurn:
        encoded = self._bpe.encode(text, add_special_tokens=False)
        if role == "assistant":
            # A token starts with the space before its word, so its last character decides.
            word_at = np.cumsum([here.isspace() for here in text])
            self.words = [int(word_at[end - 1]) for _, end in encoded.offsets]
        return TextTurn(self._roles[role], list(encoded.ids))


@dataclass(frozen=True, slots=True)
class Lesson:
    """An utterance with the prompt of one request for it."""

    prompt: Prompt
    example: Example
    token_words: list[int]  # of each text token
    first_token_row: int  # the other tokens follow it, in the prompt or over the frames

    @property
    def rows(self) -> int:
        return self.prompt.rows + len(self.example.codes)


class Asking:
    """Turns examples into lessons."""

    def __init__(self, folder: Path, dropout: float | None = None) -> None:
        self.config = read_config(folder)
        self._tokenizer = WordTokenizer(Tokenizer.from_folder(folder), dropout)
        self._builder = PromptBuilder(self.config, self._tokenizer)

    def lesson(self, example: Example, request: SpeechRequest) -> Lesson:
        if request.text_mode == "streaming":
            example = _waiting(example)
        prompt = self._builder.build(request)
        words = self._tokenizer.words
        # Whole text precedes the end token and the row that starts speech. Streaming text starts in that row.
        first = prompt.rows - 1 if request.text_mode == "streaming" else prompt.rows - 2 - len(words)
        return Lesson(prompt, example, words, first)


@dataclass(frozen=True, slots=True)
class Batch:
    text_ids: Tensor  # [batch, rows]
    codec_ids: Tensor  # [batch, rows]; -1: none (a frame, a row with text only, or padding)
    codes: Tensor  # [frames, 16], all utterances concatenated
    frame_rows: Tensor  # [frames], row of each frame in the flattened batch; the row before it predicts it
    last_rows: Tensor  # [batch], row of the last frame, which predicts the end of speech
    phones: Tensor  # [frames, 3 * 4]
    text_words: Tensor  # [batch, rows], index of the word that the row's token belongs to, or NO_WORD
    frame_words: Tensor  # [frames], index of the spoken word, or NO_WORD

    def to(self, device: torch.device) -> Batch:
        moved = (getattr(self, name).to(device, non_blocking=True) for name in self.__slots__)
        return Batch(*moved)

    def pin_memory(self) -> Batch:
        return Batch(*(getattr(self, name).pin_memory() for name in self.__slots__))


class Source(IterableDataset[Batch]):
    """An endless stream of batches, different in every loader worker. The seed and the number of workers determine it,
    except for BPE dropout: the tokenizers library cannot be seeded."""

    def __init__(self, folder: Path, examples: list[Example], *, rows: int, seed: int, plain: bool = False) -> None:
        """`folder` has config and vocabulary; `rows` is the maximum per batch; `plain`: whole text, one sentence."""
        self._folder, self._examples, self._rows, self._seed, self._plain = folder, examples, rows, seed, plain

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        draw = random.Random(self._seed * 1000 + (worker.id if worker else 0))
        exact, loose = Asking(self._folder), Asking(self._folder, dropout=0.1)
        alike: dict[tuple[str, str], list[Example]] = {}
        for example in self._examples:
            alike.setdefault((example.voice, example.style), []).append(example)
        while True:
            pool = []
            for example in draw.choices(self._examples, k=min(_POOL, 8 * len(self._examples))):
                asking = exact if self._plain or draw.random() < 0.6 else loose
                joined = example if self._plain else _joined(example, alike[example.voice, example.style], draw)
                pool.append(asking.lesson(joined, request_for(joined, draw, plain=self._plain)))
            yield from _batches(exact.config, pool, self._rows, draw)


def _joined(example: Example, alike: list[Example], draw: random.Random) -> Example:
    """Sometimes joins two to six sentences, for longer speech with pauses. The server's segments have up to 400
    characters."""
    more = draw.choices((0, 1, 2, 3, 5), (0.75, 0.12, 0.06, 0.04, 0.03))[0]
    parts = [example, *draw.choices(alike, k=more)]
    before = np.cumsum([0, *(len(part.text.split()) for part in parts[:-1])])
    words = [
        np.where(part.words == NO_WORD, NO_WORD, part.words + begin) for part, begin in zip(parts, before, strict=True)
    ]
    return Example(
        " ".join(part.text for part in parts), example.voice, example.style,
        np.concatenate([part.codes for part in parts]), np.concatenate([part.phones for part in parts]),
        np.concatenate(words).astype(np.int16),
    )  # fmt: skip


def _waiting(example: Example) -> Example:
    """The utterance after LEAD_FRAMES of silence."""
    lead = (LEAD_FRAMES, 0)
    return Example(
        example.text, example.voice, example.style, with_silence(example.codes, LEAD_FRAMES),
        np.pad(example.phones, (lead, (0, 0))), np.pad(example.words, lead, mode="edge"),
    )  # fmt: skip


def request_for(example: Example, draw: random.Random, *, plain: bool) -> SpeechRequest:
    asked = example.style != "plain" or (not plain and draw.random() < 0.06)
    mode: TextMode = "whole" if plain or draw.random() < 0.6 else "streaming"
    text = example.text
    if not plain and draw.random() < 0.1:
        text = text.rstrip(".")  # users often omit it
    return SpeechRequest(
        text=text,
        voice=example.voice,
        language="english" if draw.random() < 0.5 else "auto",
        instructions=draw.choice(INSTRUCTIONS[example.style]) if asked else None,
        text_mode=mode,
    )


def _batches(config: ModelConfig, pool: list[Lesson], rows: int, draw: random.Random) -> Iterator[Batch]:
    groups: list[list[Lesson]] = [[]]
    for lesson in sorted(pool, key=lambda lesson: lesson.rows):
        if groups[-1] and (len(groups[-1]) + 1) * _rounded(lesson.rows) > rows:
            groups.append([])
        groups[-1].append(lesson)
    draw.shuffle(groups)
    for group in groups:
        yield collate(config, group)


def _rounded(rows: int) -> int:
    """Rounds up, because libraries plan kernels for every new shape."""
    return -(-rows // _ROUNDED_ROWS) * _ROUNDED_ROWS


def collate(config: ModelConfig, group: list[Lesson]) -> Batch:
    longest = _rounded(max(lesson.rows for lesson in group))
    # Narrow integers: batches pass through shared memory, which may be small.
    assert config.talker.text_vocab < 2**15, config.talker.text_vocab
    text = np.full((len(group), longest), config.tts_pad_id, np.int16)
    codec = np.full((len(group), longest), -1, np.int16)
    text_words = np.full((len(group), longest), NO_WORD, np.int16)
    frame_rows, last_rows, phones = [], [], []
    for place, lesson in enumerate(group):
        prompt, example = lesson.prompt, lesson.example
        head, frames = prompt.rows, len(example.codes)
        text[place, :head], codec[place, :head] = prompt.text_ids, prompt.codec_ids
        trailing = prompt.trailing_ids[:frames]
        text[place, head : head + len(trailing)] = trailing
        first = lesson.first_token_row
        token_words = lesson.token_words[: longest - first]
        text_words[place, first : first + len(token_words)] = token_words
        rows = place * longest + head + np.arange(frames)
        frame_rows.append(rows)
        last_rows.append(rows[-1])
        beyond = np.full((AHEAD_FRAMES - 1, FRAME_LABELS), NO_PHONE, np.uint8)
        ahead = np.concatenate((example.phones, beyond))
        phones.append(np.concatenate([ahead[step : step + frames] for step in range(AHEAD_FRAMES)], axis=1))
    return Batch(
        text_ids=torch.from_numpy(text), codec_ids=torch.from_numpy(codec),
        codes=torch.from_numpy(np.concatenate([lesson.example.codes for lesson in group])),
        frame_rows=torch.from_numpy(np.concatenate(frame_rows).astype(np.int32)),
        last_rows=torch.tensor(last_rows, dtype=torch.int32), phones=torch.from_numpy(np.concatenate(phones)),
        text_words=torch.from_numpy(text_words),
        frame_words=torch.from_numpy(np.concatenate([lesson.example.words for lesson in group])),
    )  # fmt: skip


def loader(source: Source, workers: int) -> Iterator[Batch]:
    pinned = torch.cuda.is_available()
    ahead = 3 if workers else None
    return iter(DataLoader(source, batch_size=None, num_workers=workers, pin_memory=pinned, prefetch_factor=ahead))
