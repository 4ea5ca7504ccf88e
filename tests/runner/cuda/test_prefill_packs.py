"""Batched admission: what arrives on the device, in how many packs, and with how many launches.

The kernels run in Triton's interpreter where there is no GPU. (test_decode_step.py and test_interpreted.py test what
the layers compute of a pack.)
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from oscine.request import DrawParams, SamplingParams

pytest.importorskip("triton")

from oscine.kernels.admit import InputTables
from oscine.model.config import read_config
from oscine.model.speech_model import SpeechModel
from oscine.runner.backend import Newcomer
from oscine.runner.cuda import long_prefill, prefill_packs
from oscine.runner.cuda.codec import CudaCodec
from oscine.runner.cuda.decode_step import PromptRows
from oscine.runner.cuda.graphs import SideStream
from oscine.runner.cuda.prefill_packs import BatchedAdmission, PendingRows
from oscine.runner.kv_cache import PagedKVCache
from oscine.runner.memory_budget import plan_memory
from oscine.runner.runner import SlotAssignment
from oscine.runner.slot_state import SlotState
from oscine.types import NO_CODEC, SPEAKER, Prompt, reference_frame
from tests.runner.tiny_model import CODES, random_prompt, tiny_model

pytestmark = pytest.mark.slow

SLOTS, LARGEST = 8, 64
LONG_SIZES = (24, 48)  # rows of a long pack; none of them is a short pack's
LONG = LONG_SIZES[-1]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SAMPLING = SamplingParams(DrawParams(top_k=7, temperature=0.5), DrawParams(greedy=True), seed=(5 << 32) + 2**32 - 1)


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def model(small_checkpoints) -> SpeechModel:
    return tiny_model(read_config(small_checkpoints("1b7", "custom_voice")), torch.bfloat16).to(DEVICE)


class RecordingStep:
    """Records every pack instead of computing it."""

    def __init__(self, model: SpeechModel) -> None:
        talker, predictor = model.talker, model.predictor
        text = talker.text_rows(torch.arange(talker.config.text_vocab, device=DEVICE))
        self.input_tables = InputTables(talker.code_embedding.weight, predictor.embeddings, text)
        self.sizes = LONG_SIZES
        self.packs: list[tuple[int, list[tuple[int, int]], torch.Tensor]] = []  # size, (first block, position), inputs

    def prefill(self, prompts: PromptRows) -> None:
        used = prompts.positions >= 0
        rows = zip(prompts.block_table[used, 0].tolist(), prompts.positions[used].tolist(), strict=True)
        self.packs.append((len(prompts.inputs), list(rows), prompts.inputs[used].clone()))


@dataclass
class Rig:
    step: RecordingStep
    state: SlotState
    kv: PagedKVCache
    codec: CudaCodec
    admission: BatchedAdmission

    def add(self, slot: int, prompt: Prompt, **cached) -> list[tuple[int, int]]:
        """The slot's only block is slot + 1. Returns the rows that RecordingStep will note."""
        newcomer = Newcomer(SlotAssignment(slot, prompt, SAMPLING), [slot + 1], **cached)
        self.admission.add(newcomer)
        return [(slot + 1, position) for position in range(newcomer.prefix_rows, prompt.rows - 1)]


@pytest.fixture
def make_rig(model, monkeypatch) -> Callable[..., Rig]:
    """Small packs, and in every slot what an earlier stream may have left."""
    monkeypatch.setattr(prefill_packs, "PACK_SIZES", (16, 32, LARGEST))
    monkeypatch.setattr(long_prefill, "MIN_ROWS", 20)

    def make(*, long_packs: bool) -> Rig:
        sizes = {"slots": SLOTS, "positions_per_slot": 256, "positions_total": None, "text_capacity": 16}
        budget = plan_memory(model.config, element_bytes=2, available_bytes=None, **sizes)
        state = SlotState.allocate(model.config, budget, model.talker.head.weight)
        for tensor in (state.ints, state.floats, state.inputs, state.block_table, state.text_ids, state.seen):
            tensor.fill_(1)
        kv = PagedKVCache.allocate(model.config.talker.stack, budget.blocks, model.talker.head.weight)
        codec, step = CudaCodec(model.codec, SLOTS, SLOTS), RecordingStep(model)
        for slot in range(SLOTS):
            for view in codec.state_views(slot):
                view.fill_(7)
        parts = (step, step if long_packs else None, state, kv, codec, SideStream(torch.device("cpu")))
        return Rig(step, state, kv, codec, BatchedAdmission(*parts, budget, captured=False))

    return make


@pytest.fixture
def rig(make_rig) -> Rig:
    return make_rig(long_packs=False)


@pytest.fixture
def long_rig(make_rig) -> Rig:
    return make_rig(long_packs=True)


def test_prompts_added_together_are_one_pack(rig):
    rows = rig.add(1, random_prompt(8, 1)) + rig.add(2, random_prompt(21, 2)) + rig.add(3, random_prompt(2, 3))
    assert rig.step.packs == []
    rig.admission.flush()
    assert [(size, noted) for size, noted, _ in rig.step.packs] == [(32, rows)]


def test_a_long_prompt_continues_in_the_next_pack(rig):
    rows = rig.add(1, random_prompt(11, 1)) + rig.add(2, random_prompt(LARGEST + 1, 2))
    rig.admission.flush()
    assert [size for size, _, _ in rig.step.packs] == [LARGEST, 16]
    assert [row for _, noted, _ in rig.step.packs for row in noted] == rows


def test_a_flush_leaves_nothing_pending(rig):
    rig.add(1, random_prompt(30, 1))
    rig.admission.flush()
    rows = rig.add(2, random_prompt(3, 2))
    rig.admission.flush()
    rig.admission.flush()
    assert [(size, noted) for size, noted, _ in rig.step.packs[1:]] == [(16, rows)]


def test_a_frame_runs_a_short_pack_with_its_own_rows_if_there_is_room(rig, monkeypatch):
    monkeypatch.setattr(prefill_packs, "MIXED_SIZES", (16, 32))
    rows = rig.add(1, random_prompt(8, 1)) + rig.add(2, random_prompt(6, 2))
    assert rig.admission.flush_mixed(5) == PendingRows(12, 32) and rig.step.packs == []
    placed = rig.admission.placed_mixed(32)
    assert placed.positions.tolist() == [position for _, position in rows] + [-1] * 20
    assert rig.admission.flush_mixed(5) is None and rig.step.packs == [], "it is not run twice"
    rig.add(3, random_prompt(20, 3))
    assert rig.admission.flush_mixed(14) is None and [size for size, _, _ in rig.step.packs] == [32], "no room"


def test_a_frame_leaves_long_packs_alone(long_rig):
    long_rig.add(1, random_prompt(30, 1))
    long_rig.add(2, random_prompt(5, 2))
    assert long_rig.admission.flush_mixed(1) is None
    assert [size for size, _, _ in long_rig.step.packs] == [16, 48]


def test_requests_whose_texts_do_not_fit_together_are_sent_one_after_the_other(rig, monkeypatch):
    monkeypatch.setattr(prefill_packs.AdmissionBlock, "room_for", lambda block, prompt: block.requests < 2)
    for slot in range(5):
        rig.add(slot, random_prompt(2, slot, trailing=16))
    rig.admission.flush()
    assert [len(noted) for _, noted, _ in rig.step.packs] == [2, 2, 1]
    assert rig.state.int_row("text_count")[:5].tolist() == [16] * 5


def cloned_prompt() -> Prompt:
    rng = np.random.default_rng(0)
    codec_ids = np.array([3, NO_CODEC, SPEAKER, *map(reference_frame, (2, 0, 1)), 5])
    return Prompt(
        text_ids=rng.integers(0, 32, 7),
        codec_ids=codec_ids,
        trailing_ids=rng.integers(0, 32, 4),
        speaker=rng.standard_normal(32).astype(np.float32),
        reference_codes=rng.integers(0, CODES, (3, 16)),
    )


def test_prompt_rows_are_those_of_the_model(rig, model):
    """Up to the text rows, which the step reads from its table."""
    prompt, tables = cloned_prompt(), rig.step.input_tables
    rig.add(2, prompt)
    rig.admission.flush()
    ids = torch.from_numpy(prompt.text_ids).to(DEVICE)
    model_rows, model_text = model.prompt_rows(prompt).float(), model.talker.text_rows(ids).float()
    rows = torch.cat((rig.step.packs[0][2], rig.state.inputs[2:3]))
    expected = torch.cat([tables.first[3:4], torch.zeros_like(tables.first[:1])]) + tables.text[ids[:2]]
    torch.testing.assert_close(rows[:2], expected, rtol=0, atol=0)
    assert (rows.float() - tables.text[ids].float() - (model_rows - model_text)).abs().max() < 0.04  # bf16 of up to 4


def test_the_slot_holds_what_the_torch_backend_would_write(rig, model):
    plain = replace(rig.state, **{name: getattr(rig.state, name).clone() for name in rig.state.__slots__})
    prompt = random_prompt(5, 9, trailing=6)
    rig.add(3, prompt)
    rig.admission.flush()
    plain.write(
        3, position=4, input_row=rig.state.inputs[3], blocks=[4], text_ids=prompt.trailing_ids.tolist(),
        streaming_text=False, sampling=SAMPLING,
    )  # fmt: skip
    for name in rig.state.__slots__:
        torch.testing.assert_close(getattr(rig.state, name), getattr(plain, name), rtol=0, atol=0)


def test_a_cached_prefix_is_copied_to_the_slot_and_not_computed(rig):
    layers, _, heads, _, dim = rig.kv.keys.shape
    keys, values = torch.randn(2, 70, layers, heads, dim, device=DEVICE).bfloat16()
    newcomer = Newcomer(SlotAssignment(1, random_prompt(75, 1), SAMPLING), [6, 3], prefix=(keys, values))
    rig.admission.add(newcomer)
    rig.admission.flush()
    copied = rig.kv.read(rig.state.block_table[1], 75)
    for ours, theirs in zip(copied, (keys, values), strict=True):
        torch.testing.assert_close(ours[:70], theirs, rtol=0, atol=0)
        assert not ours[70:].any()
    assert [noted for _, noted, _ in rig.step.packs] == [[(6, position) for position in range(70, 74)]]


def test_the_codec_starts_from_silence_or_after_the_reference(rig):
    snapshot = tuple(torch.randint_like(view, 99) for view in rig.codec.snapshot(0))
    rig.add(1, random_prompt(2, 1))
    rig.add(2, random_prompt(2, 2), codec_state=snapshot)
    rig.admission.flush()
    assert all(not view.any() for view in rig.codec.cleared_views(1))
    for view, saved in zip(rig.codec.state_views(2), snapshot, strict=True):
        torch.testing.assert_close(view, saved, rtol=0, atol=0)
    assert all((view == 7).all() for slot in (0, 3) for view in rig.codec.state_views(slot))


def kinds(rig: Rig) -> list[tuple[int, list[tuple[int, int]]]]:
    """Size and rows of every pack so far."""
    return [(size, noted) for size, noted, _ in rig.step.packs]


def test_long_stretches_run_in_long_packs_and_the_others_in_short_ones(long_rig):
    few = long_rig.add(1, random_prompt(20, 1))  # 19 rows; the last one is the first frame's
    many = long_rig.add(2, random_prompt(21, 2)) + long_rig.add(3, random_prompt(22, 3))
    few += long_rig.add(4, random_prompt(5, 4))
    long_rig.admission.flush()
    assert kinds(long_rig) == [(32, few), (LONG, many)]


def test_without_a_long_step_all_packs_are_short(rig):
    rows = rig.add(1, random_prompt(60, 1))
    rig.admission.flush()
    assert kinds(rig) == [(LARGEST, rows)]


@pytest.mark.parametrize(("rows", "size"), [(20, 24), (24, 24), (25, 48), (47, 48)])
def test_a_long_pack_has_the_smallest_size_that_holds_its_rows(long_rig, rows, size):
    added = long_rig.add(1, random_prompt(rows + 1, 1))
    long_rig.admission.flush()
    assert kinds(long_rig) == [(size, added)]


def test_a_full_long_pack_is_flushed_at_once(long_rig):
    rows = long_rig.add(1, random_prompt(31, 1)) + long_rig.add(2, random_prompt(2 * LONG, 2))
    assert kinds(long_rig) == [(LONG, rows[:LONG]), (LONG, rows[LONG : 2 * LONG])]
    long_rig.admission.flush()
    assert kinds(long_rig)[2:] == [(LONG, rows[2 * LONG :])]


@pytest.mark.parametrize("prefix_rows", [6, 25, 45])
def test_the_rows_of_a_prompt_run_in_order(long_rig, prefix_rows):
    """Short and long, long and long, long and short."""
    rows = [
        *long_rig.add(1, random_prompt(52, 1, prefix_rows=prefix_rows)),
        *long_rig.add(2, random_prompt(52, 2, prefix_rows=prefix_rows)),
    ]
    long_rig.admission.flush()
    for block in (2, 3):
        run = [row for _, noted in kinds(long_rig) for row in noted if row[0] == block]
        assert run == [row for row in rows if row[0] == block]


@pytest.mark.parametrize("prefix_rows", [5, 25, 35])
def test_a_row_runs_in_the_same_kind_of_pack_with_a_cached_prefix(long_rig, prefix_rows):
    layers, _, heads, _, dim = long_rig.kv.keys.shape
    prefix = torch.zeros(2, prefix_rows, layers, heads, dim, device=DEVICE).bfloat16()
    prompt = random_prompt(50, 1, prefix_rows=prefix_rows)
    kind_of = {}
    for slot, cached in ((1, {"prefix": tuple(prefix)}), (2, {})):
        long_rig.add(slot, prompt, **cached)
        long_rig.admission.flush()
        packs = [(size, position) for size, noted in kinds(long_rig) for block, position in noted if block == slot + 1]
        kind_of[slot] = {position: size in LONG_SIZES for size, position in packs if position >= prefix_rows}
    assert kind_of[1] == kind_of[2] == dict.fromkeys(range(prefix_rows, 49), prefix_rows < 30)


def test_all_rows_of_a_voice_with_a_long_reference_run_in_long_packs(long_rig):
    frames = np.random.default_rng(0).integers(0, CODES, (20, 16))
    for slot, prefix_rows in ((1, 4), (2, 22)):  # whatever is left of the prompt after the shared rows
        prompt = replace(random_prompt(24, slot, prefix_rows=prefix_rows), reference_codes=frames)
        rows = long_rig.add(slot, prompt)
        long_rig.admission.flush()
        assert kinds(long_rig)[slot - 1 :] == [(LONG_SIZES[0], rows)]


class TorchCalls(TorchFunctionMode):
    """Notes what torch is asked to do with tensors, except to look at them."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func.__name__ not in ("__get__", "__getitem__", "__len__"):
            self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_eight_requests_take_no_more_transfers_and_launches_than_one(rig, monkeypatch):
    launches: list[str] = []
    for name in ("write_slots", "copy_prefixes", "start_codecs", "place_rows"):
        monkeypatch.setattr(prefill_packs, name, lambda *args, name=name: launches.append(name))
    rig.step.prefill = lambda *pack: launches.append("prefill")
    for requests in (1, 8):
        launches.clear()
        with TorchCalls() as calls:
            for slot in range(requests):
                rig.add(slot, cloned_prompt())
            rig.admission.flush()
        assert calls.names == ["copy_"]
        assert launches == ["write_slots", "copy_prefixes", "place_rows", "prefill", "start_codecs"]
