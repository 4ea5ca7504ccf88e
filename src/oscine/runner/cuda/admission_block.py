"""The admission block: all that newcomers write to the device, collected in pinned memory and sent in one transfer.

    headers [slots, words] int64 | records of prompt rows [rows, 20] int32 | data int32: text ids, vectors

kernels/admit.py reads it. The host fills one buffer while the device may still read earlier ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from oscine.frames import CODEBOOKS
from oscine.kernels.admit import RECORD_CODES, HeaderLayout
from oscine.runner.newcomer import Newcomer
from oscine.runner.slot_state import FLOATS, INTS, slot_numbers
from oscine.types import SPEAKER, Prompt, reference_frame

RECORD_WORDS = RECORD_CODES + CODEBOOKS
PADDING = -1  # slot of a header, position of a record
_KIND = 3
_BUFFERS = 8  # transfers that may wait for the device before the host has to wait too


Records = npt.NDArray[np.int32]  # [rows, RECORD_WORDS]


def header_layout(pieces: int, blocks: int) -> HeaderLayout:
    return HeaderLayout(len(INTS), len(FLOATS), pieces, blocks, RECORD_WORDS)


@dataclass(slots=True)
class _Buffer:
    flat: Tensor  # uint8, pinned
    headers: npt.NDArray[np.int64]
    records: Records
    data: npt.NDArray[np.int32]
    sent: torch.cuda.Event | None = None


def prompt_records(slot: int, prompt: Prompt, first: int) -> Records:
    """Of the prompt rows from `first` on. The vector has no place yet: its kind is only negative."""
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
    def __init__(self, layout: HeaderLayout, slots: int, rows: int, data_words: int, device: torch.device) -> None:
        self.layout, self.max_rows = layout, rows
        numbers = (layout.ints_at, layout.floats_at, layout.record_at)
        places = (0, *numbers, layout.pieces_at, layout.blocks_at, layout.words)
        self._parts = [slice(*ends) for ends in pairwise(places)]
        self._sizes = (slots * layout.words * 8, rows * RECORD_WORDS * 4, data_words * 4)
        self._device = torch.empty(sum(self._sizes), dtype=torch.uint8, device=device)
        headers, records, data = self._device.split(self._sizes)
        self.headers = headers.view(torch.int64).view(slots, layout.words)
        self.records = records.view(torch.int32).view(rows, RECORD_WORDS)
        self.data = data.view(torch.int32)
        self.headers.fill_(PADDING)
        self.records.fill_(PADDING)
        self._buffers = [self._buffer(pinned=device.type == "cuda") for _ in range(_BUFFERS)]
        self._index = 0
        self.requests = self.rows = self._data_used = 0  # in the current buffer

    def _buffer(self, *, pinned: bool) -> _Buffer:
        flat = torch.empty(sum(self._sizes), dtype=torch.uint8, device="cpu", pin_memory=pinned)
        headers, records, data = np.split(flat.numpy(), np.cumsum(self._sizes[:2]))
        shaped = headers.view(np.int64).reshape(self.headers.shape), records.view(np.int32).reshape(self.records.shape)
        return _Buffer(flat, *shaped, data.view(np.int32))

    def room_for(self, prompt: Prompt) -> bool:
        """For the header, the text ids and the vectors of all rows."""
        words = len(prompt.trailing_ids) + (0 if prompt.speaker is None else 2 * len(prompt.speaker))
        return self.requests < len(self.headers) and self._data_used + words <= len(self.data)

    def add_header(self, newcomer: Newcomer, last: Records, pieces: Sequence[int]) -> None:
        """The slot's state. `last`: the record of the last prompt row; `pieces`: sources of the codec state."""
        new, prompt = newcomer.assignment, newcomer.assignment.prompt
        ints, floats = slot_numbers(
            new.sampling,
            position=prompt.rows - 1,
            text_count=len(prompt.trailing_ids),
            streaming_text=new.streaming_text,
        )
        cached = newcomer.prefix
        addresses = (0, 0) if cached is None else (cached[0].data_ptr(), cached[1].data_ptr())
        header = self._buffers[self._index].headers[self.requests]
        self._place_vector(last, prompt)
        text_at = self._add_data(prompt.trailing_ids)
        fixed, numbers, bits, record, codec, blocks = self._parts
        header[fixed] = new.slot, text_at, len(prompt.trailing_ids), newcomer.prefix_rows, *addresses
        header[numbers] = ints
        header[bits] = np.array(floats, np.float32).view(np.int32)
        header[record] = last[0]
        header[codec] = pieces
        header[blocks] = [*newcomer.blocks, *[0] * (self.layout.blocks - len(newcomer.blocks))]
        self.requests += 1

    def add_rows(self, records: Records, prompt: Prompt) -> Records:
        """Adds as many as fit. Returns the others."""
        room = self.max_rows - self.rows
        fitting, others = records[:room], records[room:]
        self._place_vector(fitting, prompt)
        self._buffers[self._index].records[self.rows : self.rows + len(fitting)] = fitting
        self.rows += len(fitting)
        return others

    def _place_vector(self, records: Records, prompt: Prompt) -> None:
        if prompt.speaker is not None and (is_vector := records[:, _KIND] < 0).any():
            vector = np.ascontiguousarray(prompt.speaker, np.float32)
            records[is_vector, _KIND] = -1 - self._add_data(vector.view(np.int32))

    def _add_data(self, words: npt.NDArray[np.integer]) -> int:
        """Returns their place."""
        at = self._data_used
        self._buffers[self._index].data[at : at + len(words)] = words
        self._data_used += len(words)
        return at

    def send(self, headers: int, records: int) -> None:
        """Copies the block to the device, with padding up to these numbers of headers and records."""
        buffer = self._buffers[self._index]
        buffer.headers[self.requests : headers, 0] = PADDING
        buffer.records[self.rows : records, 1] = PADDING
        used = self._sizes[0] + self._sizes[1] + 4 * self._data_used
        self._device[:used].copy_(buffer.flat[:used], non_blocking=True)
        if self._device.is_cuda:
            buffer.sent = torch.cuda.Event()
            buffer.sent.record()
        self.requests = self.rows = self._data_used = 0
        self._index = (self._index + 1) % len(self._buffers)
        oldest = self._buffers[self._index]
        if oldest.sent is not None:
            oldest.sent.synchronize()
