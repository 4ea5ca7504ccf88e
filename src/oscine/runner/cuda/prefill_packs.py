"""Batched admission: the newcomers of a tick are written together, and their prompt rows run in packs.

A flush is one transfer, one graph that writes slots, and one graph for each pack of prompt rows. Then, on the codec's
stream, one graph writes the slots' codec states, after the frame that the codec is working on. A full pack is flushed
at once; a prompt that does not fit continues in the next pack, which reads the keys of this one. A short pack that
remains when a frame is launched runs in the talker's step of that frame if both have few rows, so that the weights are
read once.

There are two kinds of packs: short ones run on the kernels of frames, long ones have other products (long_prefill.py).
A pack has the smallest size of its kind that holds its rows. A row gets the same bits in any pack of its kind
(kernels/linear.py and long_prefill.py say why), and its request alone decides on the kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from oscine.kernels.admit import InputTables, copy_prefixes, place_rows, start_codecs, write_slots
from oscine.runner.backend import CaptureProgress, Newcomer, SlotCodec
from oscine.runner.cuda.admission_block import AdmissionBlock, PackKind, Records, header_layout, prompt_records
from oscine.runner.cuda.codec import CodecPieces
from oscine.runner.cuda.decode_step import PromptRows
from oscine.runner.cuda.graphs import GraphSet, SideStream, wait_for
from oscine.runner.cuda.long_prefill import is_long
from oscine.runner.kv_cache import PagedKVCache
from oscine.runner.memory_budget import MemoryBudget
from oscine.runner.slot_state import SlotState

PACK_SIZES = (16, 32, 64, 128, 256, 512)  # prompt rows of a short pack
MIXED_SIZES = (32, 64, 128, 192, 256)  # rows of a short pack and of a frame together
_SLOT_SIZES = (1, 4, 16, 64)  # newcomers
_DATA_WORDS = 1 << 16


@dataclass(frozen=True, slots=True)
class PendingRows:
    """A short pack that a frame runs with its own rows."""

    rows: int
    size: int  # with those of the frame, and padding


class PrefillStep(Protocol):
    """The part of DecodeStep that fills the KV cache."""

    @property
    def input_tables(self) -> InputTables: ...

    def prefill(self, prompts: PromptRows) -> None: ...


class LongPrefillStep(Protocol):
    """The part of LongPrefill that fills the KV cache."""

    @property
    def sizes(self) -> Sequence[int]: ...  # rows of a pack, ascending

    def prefill(self, prompts: PromptRows) -> None: ...


class BatchedAdmission:
    def __init__(
        self,
        step: PrefillStep,
        long_step: LongPrefillStep | None,
        state: SlotState,
        kv: PagedKVCache,
        codec: SlotCodec,
        codec_stream: SideStream,
        budget: MemoryBudget,
        *,
        captured: bool,
    ) -> None:
        """All packs are short if there is no `long_step`."""
        self._step, self._long_step = step, long_step
        self._state, self._kv, self._codec_stream = state, kv, codec_stream
        width, device = state.inputs.shape[1], state.inputs.device
        max_rows = [PACK_SIZES[-1]] if long_step is None else [PACK_SIZES[-1], long_step.sizes[-1]]
        largest = max(max_rows)
        self._codec = CodecPieces(codec, device)
        layout = header_layout(len(self._codec), budget.blocks_per_slot)
        data_words = max(_DATA_WORDS, budget.text_capacity + 2 * width)
        self._block = AdmissionBlock(layout, budget.slots, max_rows, data_words, device)
        self._inputs = state.inputs.new_zeros(largest, width)
        self._row_blocks = torch.zeros(largest, budget.blocks_per_slot, dtype=torch.int64, device=device)
        self._positions = torch.full((largest,), -1, dtype=torch.int64, device=device)
        self._sources: list[Any] = []  # keeps cached tensors until the device's work on them is enqueued
        sizes = [*(size for size in _SLOT_SIZES if size < budget.slots), budget.slots]
        self._slot_graphs = GraphSet(self._write_slots, sizes, captured=captured)
        self._codec_graphs = GraphSet(self._start_codecs, sizes, captured=captured and len(self._codec) > 0)
        self._pack_graphs = [GraphSet(self._run_pack, PACK_SIZES, captured=captured)]
        if long_step is not None:
            self._pack_graphs.append(GraphSet(self._run_long_pack, long_step.sizes, captured=captured))
        self.graph_sets = (self._slot_graphs, self._codec_graphs, *self._pack_graphs)
        self._codecs_started: torch.cuda.Event | None = (
            None  # after the last transfer; until then, the device reads the block
        )
        self._new_codecs = 0  # of the last transfer, with padding, not yet started

    def capture(self, progress: CaptureProgress) -> None:
        """Captures all graphs on a block of padding."""
        self._block.send(len(self._block.headers), self._block.max_rows)
        steps, captured = sum(len(graphs.sizes) for graphs in self.graph_sets), 0
        for graphs in self.graph_sets:
            graphs.capture(lambda done, total, before=captured: progress(before + done, steps))  # type: ignore[misc]
            captured += len(graphs.sizes)

    def add(self, newcomer: Newcomer) -> None:
        prompt, block = newcomer.assignment.prompt, self._block
        assert prompt.speaker is None or prompt.speaker.shape == self._inputs.shape[1:], prompt.speaker.shape
        # Everything that can fail comes first, because all that is in the block will be written.
        records = prompt_records(newcomer.assignment.slot, prompt, newcomer.prefix_rows)
        pieces = self._codec.sources(newcomer.codec_state)
        if not block.room_for(prompt):
            self.flush()
        block.add_header(newcomer, records[-1:], pieces)
        self._sources.append((newcomer.prefix, newcomer.codec_state))
        self._codec_stream.reads(newcomer.codec_state or ())
        added = PackKind.SHORT
        for kind, rows in self._parts(newcomer, records[:-1]):
            if kind < added:
                self.flush()  # otherwise its pack would run before the earlier rows
            added = kind
            while len(rows):
                rows = block.add_rows(kind, rows, prompt)
                if block.rows[kind] == block.max_rows[kind]:
                    self.flush()

    def _parts(self, newcomer: Newcomer, records: Records) -> Iterator[tuple[PackKind, Records]]:
        """Yields the rows of the prefix that others share, and the rest, each with its kind of pack. A cached prefix
        has no records, but the kind of the rest must not depend on that."""
        prompt, first = newcomer.assignment.prompt, newcomer.prefix_rows
        shared = min(prompt.prefix_rows, prompt.rows - 1)
        for begin, end in ((0, shared), (shared, prompt.rows - 1)):
            rows = records[max(0, begin - first) : max(0, end - first)]
            if len(rows):
                long = self._long_step is not None and is_long(prompt, end - begin)
                yield PackKind.LONG if long else PackKind.SHORT, rows

    def flush(self) -> None:
        block = self._block
        if not block.requests and not any(block.rows):
            return
        pending = zip(self._pack_graphs, block.rows, strict=True)
        packs = [graphs.size_for(rows) if rows else 0 for graphs, rows in pending]
        self._send(packs)
        for graphs, size in zip(self._pack_graphs, packs, strict=True):
            if size:
                graphs.replay(size)
        with self._codec_stream.after_current():
            self.start_codecs()

    def flush_mixed(self, frames: int) -> PendingRows | None:
        """Does the same as `flush`, but may leave a short pack to a frame of so many rows, which runs it with its own
        rows. The codecs are started after that."""
        short, *others = self._block.rows
        if not short or any(others) or short + frames > MIXED_SIZES[-1]:
            self.flush()
            return None
        size = next(size for size in MIXED_SIZES if size >= short + frames)
        self._send([size, *others])
        return PendingRows(short, size)

    def _send(self, packs: Sequence[int]) -> None:
        """Transfers the block and writes the slots. `packs`: the size of each pack."""
        requests = self._block.requests
        self._new_codecs = self._slot_graphs.size_for(requests) if requests else 0
        wait_for(self._codecs_started)
        self._block.send(self._new_codecs, packs)
        if self._new_codecs:
            self._slot_graphs.replay(self._new_codecs)

    def start_codecs(self) -> None:
        """Starts the codecs of the last transfer, on the codec's stream."""
        if self._new_codecs:
            self._codec_graphs.replay(self._new_codecs)
            self._codecs_started = self._codec_stream.event()
            self._new_codecs = 0
        self._sources.clear()

    def placed_mixed(self, size: int) -> PromptRows:
        """Returns rows for the frame's step: those of the short pack, then padding."""
        return self._placed_rows(PackKind.SHORT, size)

    def _write_slots(self, size: int) -> None:
        block, headers, layout = self._block, self._block.headers[:size], self._block.layout
        write_slots(headers, layout, block.data, self._step.input_tables, self._state)
        copy_prefixes(headers, layout, self._kv.keys, self._kv.values)

    def _start_codecs(self, size: int) -> None:
        if len(self._codec) > 0:
            start_codecs(self._block.headers[:size], self._block.layout, self._codec.table, self._codec.max_bytes)

    def _run_pack(self, size: int) -> None:
        self._step.prefill(self._placed_rows(PackKind.SHORT, size))

    def _run_long_pack(self, size: int) -> None:
        assert self._long_step is not None
        self._long_step.prefill(self._placed_rows(PackKind.LONG, size))

    def _placed_rows(self, kind: PackKind, size: int) -> PromptRows:
        pack = self._inputs[:size], self._row_blocks[:size], self._positions[:size]
        tables, block = self._step.input_tables, self._block
        place_rows(block.records[kind][:size], block.data, tables, self._state.block_table, *pack)
        return PromptRows(*pack)
