"""Collects everything that newcomers write to the device in pinned memory, and sends it in one transfer: the admission
block.

headers [slots, words] int64 | records of prompt rows [rows, 20] int32, for each kind of pack | data int32: text ids,
vectors

kernels/admit.py reads it. The host fills one buffer while the device may still read earlier ones.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from oscine.audio.pcm import CODEBOOKS
from oscine.kernels.admit import RECORD_CODES, HeaderLayout
from oscine.runner.backend import Newcomer
from oscine.runner.slot_state import FLOATS, INTS, slot_numbers
from oscine.types import SPEAKER, Prompt, reference_frame

RECORD_WORDS = RECORD_CODES + CODEBOOKS
PADDING = -1  # slot of a header, position of a record
_KIND = 3  # of a row, in its record
MAX_TRANSFERS = 8  # transfers that may be pending before the host waits

_FLOATS, _FLOAT_BITS = struct.Struct(f"{len(FLOATS)}f"), struct.Struct(f"{len(FLOATS)}i")
Records = npt.NDArray[np.int32]  # [rows, RECORD_WORDS]


class PackKind(IntEnum):
    """Kinds of packs, in the order of a flush."""

    SHORT = 0
    LONG = 1


def header_layout(pieces: int, blocks: int) -> HeaderLayout:
    return HeaderLayout(len(INTS), len(FLOATS), pieces, blocks, RECORD_WORDS)


@dataclass(slots=True)
class _Buffer:
    flat: Tensor  # uint8, pinned
    headers: npt.NDArray[np.int64]
    records: list[Records]  # of each kind of pack
    data: npt.NDArray[np.int32]
    sent: torch.cuda.Event | None  # None on a CPU


def prompt_records(slot: int, prompt: Prompt, first: int) -> Records:
    """Returns records of the prompt rows from `first` on. The vector's place is not known yet, so its kind is only
    negative."""
    ids = prompt.codec_ids[first:]
    records = np.zeros((len(ids), RECORD_WORDS), np.int32)
    records[:, 0] = slot
    records[:, 1] = np.arange(first, prompt.rows)
    records[:, 2] = prompt.text_ids[first:]
    records[:, _KIND] = ids >= 0
    records[:, RECORD_CODES] = ids
    if prompt.speaker is not None:
        records[ids == SPEAKER, _KIND] = -1
    if prompt.reference_codes is not None:
        is_reference = ids <= reference_frame(0)
        records[is_reference, _KIND] = CODEBOOKS
        records[is_reference, RECORD_CODES:] = prompt.reference_codes[reference_frame(0) - ids[is_reference]]
    return records


class AdmissionBlock:
    def __init__(
        self, layout: HeaderLayout, slots: int, max_rows: Sequence[int], data_words: int, device: torch.device
    ) -> None:
        """`max_rows`: the maximum for each kind of pack."""
        self.layout, self.max_rows = layout, max_rows
        self._sizes = (slots * layout.words * 8, *(rows * RECORD_WORDS * 4 for rows in max_rows), data_words * 4)
        self._device = torch.empty(sum(self._sizes), dtype=torch.uint8, device=device)
        headers, *records, data = self._device.split(self._sizes)
        self.headers = headers.view(torch.int64).view(slots, layout.words)
        self.records = [some.view(torch.int32).view(-1, RECORD_WORDS) for some in records]
        self.data = data.view(torch.int32)
        for tensor in (self.headers, *self.records):
            tensor.fill_(PADDING)
        self._buffers = [self._buffer(pinned=device.type == "cuda") for _ in range(MAX_TRANSFERS)]
        self._index = 0
        self.requests = self._data_used = 0  # in the current buffer
        self.rows = [0] * len(max_rows)

    def _buffer(self, *, pinned: bool) -> _Buffer:
        flat = torch.empty(sum(self._sizes), dtype=torch.uint8, device="cpu", pin_memory=pinned)
        headers, *records, data = np.split(flat.numpy(), np.cumsum(self._sizes[:-1]))
        shaped = [some.view(np.int32).reshape(-1, RECORD_WORDS) for some in records]
        sent = torch.cuda.Event() if pinned else None
        return _Buffer(flat, headers.view(np.int64).reshape(self.headers.shape), shaped, data.view(np.int32), sent)

    def room_for(self, prompt: Prompt) -> bool:
        """Whether the header, the text ids and the vectors of all rows fit."""
        words = len(prompt.trailing_ids) + (0 if prompt.speaker is None else 2 * len(prompt.speaker))
        return self.requests < len(self.headers) and self._data_used + words <= len(self.data)

    def add_header(self, newcomer: Newcomer, last: Records, pieces: Sequence[int]) -> None:
        """Adds the slot's state. `last`: the record of the last prompt row; `pieces`: sources of the codec state."""
        new, prompt = newcomer.assignment, newcomer.assignment.prompt
        ints, floats = slot_numbers(
            new.sampling,
            position=prompt.rows - 1,
            text_count=len(prompt.trailing_ids),
            streaming_text=new.streaming_text,
        )
        cached = newcomer.prefix
        addresses = (0, 0) if cached is None else (cached[0].data_ptr(), cached[1].data_ptr())
        self._place_vector(last, prompt)
        text_at = self._add_data(prompt.trailing_ids)
        # In the order of HeaderLayout. One assignment, since each takes as long as the numbers of a request.
        words = [new.slot, text_at, len(prompt.trailing_ids), newcomer.prefix_rows, *addresses, *ints]
        words += [*_FLOAT_BITS.unpack(_FLOATS.pack(*floats)), *last[0].tolist(), *pieces, *newcomer.blocks]
        header = self._buffers[self._index].headers[self.requests]
        header[: len(words)] = words
        header[len(words) :] = 0
        self.requests += 1

    def add_rows(self, kind: PackKind, records: Records, prompt: Prompt) -> Records:
        """Adds as many rows as fit and returns the others."""
        used = self.rows[kind]
        room = self.max_rows[kind] - used
        fitting, others = records[:room], records[room:]
        self._place_vector(fitting, prompt)
        self._buffers[self._index].records[kind][used : used + len(fitting)] = fitting
        self.rows[kind] += len(fitting)
        return others

    def _place_vector(self, records: Records, prompt: Prompt) -> None:
        if prompt.speaker is not None and (is_vector := records[:, _KIND] < 0).any():
            vector = np.ascontiguousarray(prompt.speaker, np.float32)
            records[is_vector, _KIND] = -1 - self._add_data(vector.view(np.int32))

    def _add_data(self, words: npt.NDArray[np.integer]) -> int:
        """Adds numbers and returns their place."""
        at = self._data_used
        self._buffers[self._index].data[at : at + len(words)] = words
        self._data_used += len(words)
        return at

    def send(self, headers: int, records: Sequence[int]) -> None:
        """Copies the block to the device, with padding up to these numbers of headers and records."""
        buffer = self._buffers[self._index]
        buffer.headers[self.requests : headers, 0] = PADDING
        for rows, padded, some in zip(self.rows, records, buffer.records, strict=True):
            some[rows:padded, 1] = PADDING
        used = sum(self._sizes[:-1]) + 4 * self._data_used
        self._device[:used].copy_(buffer.flat[:used], non_blocking=True)
        if buffer.sent is not None:
            buffer.sent.record()
        self.requests = self._data_used = 0
        self.rows = [0] * len(self.rows)
        self._index = (self._index + 1) % len(self._buffers)
        oldest = self._buffers[self._index]
        if oldest.sent is not None:
            oldest.sent.synchronize()
