"""The recorded steps of the CPU backend give the results of plain PyTorch, for any shape of predictor. A codec on
its own thread changes none of them."""

import gc
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from oscine.audio.pcm import CODEBOOKS
from oscine.model.int8 import Int8Linear
from oscine.model.layers import Stack
from oscine.model.speech_model import SpeechModel
from oscine.model.weights import load_model
from oscine.prompt.builder import PromptBuilder
from oscine.prompt.tokenizer import Tokenizer
from oscine.request import DrawParams, SamplingParams, SpeechRequest
from oscine.runner.backend import DEFAULT_OPTIONS, Backend, BackendOptions, SilentCodec
from oscine.runner.cpu import backend as cpu_backend
from oscine.runner.cpu import predictor as cpu_predictor
from oscine.runner.cpu.backend import CpuBackend
from oscine.runner.cpu.codec import CodecThread, CpuCodec
from oscine.runner.cpu.layers import CpuStack
from oscine.runner.cpu.predictor import MAX_TABLE_BYTES, CpuPredictor, table_bytes
from oscine.runner.kv_cache import DecodeCacheView, PagedKVCache
from oscine.runner.memory_budget import MemoryBudget, plan_memory
from oscine.runner.runner import FrameOutput, SlotAssignment
from oscine.runner.sampling import DrawTable
from oscine.runner.slot_runner import SlotRunner
from oscine.runner.torch_backend import TorchBackend
from readme_figures import published
from tests.conftest import CheckpointMaker
from tests.engine.recorder import WAIT_S
from tests.reference.generate import generate
from tests.runner.cpu.test_codec_thread import HeldCodec, ReleasingThread

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
VOCAB = 128  # of the published 2048 codes, so that the tables are small
GREEDY = DrawParams(greedy=True)


@pytest.fixture(scope="module", params=["0b6", "1b7"])
def folder(request: pytest.FixtureRequest, small_checkpoints: CheckpointMaker) -> Path:
    """Checkpoints without and with a projection from the talker's width to the predictor's."""
    return small_checkpoints(request.param, "custom_voice")


@pytest.fixture(scope="module", params=[1, 2, 3])
def model(request: pytest.FixtureRequest, folder: Path) -> SpeechModel:
    """A predictor of 1 to 3 layers, with few codes."""
    model, layers = load_model(folder, device=CPU), request.param
    predictor, stack = model.predictor, model.predictor.stack
    stack.config = replace(stack.config, layers=layers)
    stack.layers = nn.ModuleList([*stack.layers, stack.layers[0]][:layers])
    predictor.config = replace(predictor.config, stack=stack.config, vocab=VOCAB)
    for name in ("embeddings", "heads"):
        setattr(predictor, name, nn.Parameter(getattr(predictor, name)[:, :VOCAB].clone(), requires_grad=False))
    model.config = replace(model.config, predictor=predictor.config)
    return model


def assert_close(left: Tensor, right: Tensor) -> None:
    assert float((left - right).abs().max() / right.abs().max()) < 1e-5


def random_codes(model: SpeechModel, rows: int) -> Tensor:
    codes = torch.randint(0, VOCAB, (rows, CODEBOOKS), generator=torch.Generator().manual_seed(rows))
    codes[0, 0] = model.config.talker.eos_id  # the engine drops this frame, but the backend computes it
    return codes


def plain_logits(model: SpeechModel, hidden: Tensor, codes: Tensor) -> list[Tensor]:
    cache = model.predictor.cache(len(codes))
    logits = [model.predictor.first(hidden, model.talker.code_embedding(codes[:, 0]), cache)]
    return logits + [model.predictor.next(book, codes[:, book], cache) for book in range(1, CODEBOOKS - 1)]


@pytest.mark.parametrize("rows", [1, 3])
def test_table_lookups_give_the_logits_of_the_plain_predictor(
    model: SpeechModel, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes, hidden = random_codes(model, rows), torch.randn(rows, model.config.talker.stack.width)
    seen = []

    def draw_given_code(logits: Tensor, table: DrawTable, uniform: Tensor) -> Tensor:
        seen.append(logits.clone())
        return codes[:, len(seen)]

    monkeypatch.setattr(cpu_predictor, "draw", draw_given_code)
    table = DrawTable.of([DrawParams()] * rows, CPU)
    with torch.inference_mode():
        predictor = CpuPredictor(model, max_rows=4)
        drawn, last_logits = predictor.frame_codes(hidden, codes[:, 0], table, torch.zeros(rows, CODEBOOKS))
        assert torch.equal(drawn, codes) and torch.equal(last_logits, seen[-1])
        for ours, plain in zip(seen, plain_logits(model, hidden, codes), strict=True):
            assert_close(ours, plain)


def test_a_recorded_step_equals_the_plain_stack(folder: Path) -> None:
    stack = load_model(folder, device=CPU).talker.stack
    kv = PagedKVCache.allocate(stack.config, 40, stack.layers[0].attention.out.weight)
    positions, blocks = torch.tensor([0, 2020, 71]), torch.arange(1, 40).expand(3, -1).clone()
    blocks[1] = blocks[1].flip(0)
    recorded = CpuStack(stack, max_rows=3)
    for rows in ([0, 1, 2], [1]):
        kv.keys.normal_(), kv.values.normal_()
        same = PagedKVCache(kv.keys.clone(), kv.values.clone())
        x, at = torch.randn(len(rows), stack.config.width), positions[rows]
        with torch.inference_mode():
            plain = stack(x[:, None], DecodeCacheView(kv, blocks[rows], at, 2021))[:, 0]
            assert_close(recorded.step(x, DecodeCacheView(same, blocks[rows], at, 2021)), plain)
        assert_close(same.keys, kv.keys)


def test_a_recorded_int8_step_equals_the_plain_stack_of_int8_matrices(folder: Path) -> None:
    stack = load_model(folder, device=CPU, int8=True).talker.stack
    kv = PagedKVCache.allocate(stack.config, 3, torch.empty(0))
    same = PagedKVCache(kv.keys.clone(), kv.values.clone())
    blocks, at, x = torch.tensor([[1], [2]]), torch.tensor([0, 0]), torch.randn(2, stack.config.width)
    with torch.inference_mode():
        plain = stack(x[:, None], DecodeCacheView(kv, blocks, at, 1))[:, 0]
        recorded = CpuStack(stack, max_rows=2).step(x, DecodeCacheView(same, blocks, at, 1))
    # Where an input lies between two integers, the two may round differently.
    assert float((recorded - plain).norm() / plain.norm()) < 0.01


@pytest.mark.parametrize("slots", [1, 2])
def test_matrices_are_packed_before_the_second_listener_comes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    model, packed = load_model(folder, device=CPU, int8=True), []
    monkeypatch.setattr(Int8Linear, "packed", lambda matrix: packed.append(matrix))
    backend = CpuBackend(model, budget(model, slots), BackendOptions(codec=False))
    backend.capture(lambda done, total: None)
    needed = {part for part in model.talker.stack.modules() if isinstance(part, Int8Linear)}
    assert needed <= set(packed) if slots > 1 else not packed


@pytest.mark.parametrize("int8", [False, True])
def test_a_row_of_a_published_layer_has_the_same_bits_alone_and_among_others(int8: bool) -> None:
    config = replace(published("0b6", "custom_voice").talker.stack, layers=1)
    stack, generator = Stack(config).requires_grad_(False), torch.Generator().manual_seed(0)
    for weight in stack.parameters():
        weight.normal_(0 if weight.dim() > 1 else 1, 0.02, generator=generator)
    stack.layers[0].attention.prepare()
    if int8:
        for name, module in list(stack.named_modules()):
            if isinstance(module, nn.Linear):
                stack.set_submodule(name, Int8Linear.of(module.weight))
    recorded, x = CpuStack(stack, max_rows=16), torch.randn(16, config.width, generator=generator)
    kv = PagedKVCache.allocate(config, 17, torch.empty(0))
    alone = []
    for rows in (1, 2, 3, 8, 16):
        blocks, at = torch.arange(1, rows + 1)[:, None], torch.zeros(rows, dtype=torch.int64)
        with torch.inference_mode():
            alone.append(recorded.step(x[:rows], DecodeCacheView(kv, blocks, at, 1))[0].clone())
    assert all(torch.equal(row, alone[0]) for row in alone)


def budget(model: SpeechModel, slots: int) -> MemoryBudget:
    return plan_memory(
        model.config, slots=slots, positions_per_slot=256, positions_total=None, element_bytes=4, available_bytes=None
    )


class Prompts:
    """Three prompts, alone on the reference path and together in slots."""

    def __init__(self, model: SpeechModel, folder: Path) -> None:
        builder = PromptBuilder(model.config, Tokenizer.from_folder(folder))
        self.model = model
        self.prompts = [
            builder.build(SpeechRequest(text=text, voice="ryan"))
            for text in ("Hello there.", "And you, the wide world?", "x")
        ]

    def codes_alone(self, sampling: Sequence[SamplingParams]) -> list[np.ndarray]:
        runs = [
            list(generate(self.model, [prompt], [params]))
            for prompt, params in zip(self.prompts, sampling, strict=True)
        ]
        return [torch.cat([step.codes for step in steps]).numpy() for steps in runs]

    def codes_in_slots(self, backend: Backend, sampling: Sequence[SamplingParams], frames: int) -> np.ndarray:
        runner = SlotRunner(backend)
        for slot, (prompt, params) in enumerate(zip(self.prompts, sampling, strict=True)):
            runner.admit(SlotAssignment(slot, prompt, params))
        return np.stack([runner.collect(runner.launch([0, 1, 2])).codes for _ in range(frames)], axis=1)


@pytest.mark.parametrize(
    "sampling",
    [
        [SamplingParams(GREEDY, GREEDY, max_new_tokens=7)] * 3,
        [
            SamplingParams(seed=1, max_new_tokens=7),
            SamplingParams(GREEDY, GREEDY, max_new_tokens=7),
            SamplingParams(rest=DrawParams(top_k=0, top_p=0.9, temperature=2.0), seed=3, max_new_tokens=7),
        ],
    ],
    ids=["greedy", "drawn"],
)
def test_the_cpu_backend_the_torch_backend_and_the_reference_draw_the_same_codes(
    model: SpeechModel, folder: Path, sampling: list[SamplingParams]
) -> None:
    prompts, cpu = Prompts(model, folder), CpuBackend(model, budget(model, 3))
    assert cpu.talker is not None and cpu.predictor is not None
    plain = TorchBackend(model, budget(model, 3))
    recorded, computed = (prompts.codes_in_slots(backend, sampling, 6) for backend in (cpu, plain))
    alone = prompts.codes_alone(sampling)
    assert sum(map(len, alone)) >= 12
    for ours, theirs, expected in zip(recorded, computed, alone, strict=True):
        frames = len(expected)  # fewer where the speech has ended
        np.testing.assert_array_equal(ours[:frames], expected)
        np.testing.assert_array_equal(theirs[:frames], expected)


def test_bf16_is_not_recorded(folder: Path) -> None:
    model = load_model(folder, device=CPU, dtype=torch.bfloat16)
    backend = CpuBackend(model, budget(model, 1))
    assert backend.predictor is None and backend.talker is None


def test_without_large_tables_the_predictor_computes_the_same(folder: Path) -> None:
    model = load_model(folder, device=CPU)  # 2048 codes
    assert table_bytes(model) > MAX_TABLE_BYTES
    sampling = [SamplingParams(GREEDY, GREEDY, max_new_tokens=50)] * 3
    prompts = Prompts(model, folder)
    ours, plain = (
        prompts.codes_in_slots(backend(model, budget(model, 3), BackendOptions(codec=False)), sampling, 3)
        for backend in (CpuBackend, TorchBackend)
    )
    np.testing.assert_array_equal(ours, plain)


@pytest.mark.parametrize("int8", [False, True])
def test_a_stream_has_the_same_bits_alone_and_among_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch, int8: bool
) -> None:
    """Hidden states and logits, not only the codes that are drawn from them: those differ in few of many frames."""
    model, frames = load_model(folder, device=CPU, int8=int8), 4
    prompts = Prompts(model, folder).prompts
    backend = CpuBackend(model, budget(model, 16), BackendOptions(codec=False))
    seen: list[list[Tensor]] = []
    for name in ("_talker_step", "_frame_codes", "_text_rows"):
        method = getattr(backend, name)

        def recorded(*args: object, method: Callable[..., Any] = method) -> Any:
            results = method(*args)
            seen[-1] += [one.clone() for one in (results if isinstance(results, tuple) else (results,))]
            return results

        monkeypatch.setattr(backend, name, recorded)

    def run(slots: Sequence[int]) -> list[Tensor]:
        """What was computed for the first of the slots."""
        runner = SlotRunner(backend)
        for slot in slots:
            runner.admit(SlotAssignment(slot, prompts[slot % 3], SamplingParams(seed=slot, max_new_tokens=50)))
        seen.append([])
        for _ in range(frames):
            assert len(runner.collect(runner.launch(slots)).codes) == len(slots)
        for slot in slots:
            runner.release(slot)
        return [tensor[0] for tensor in seen[-1]]

    alone = run([0])
    assert len(alone) == 4 * frames
    for slots in ([0], [0, 1], [0, 2, 1], [0, *range(7, 0, -1)], [*range(16)]):  # also with the cached prefix alone
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(run(slots), alone, strict=True)), slots


# --- the codec in bf16 ---


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_a_codec_in_bf16_speaks_the_samples_of_fp32_with_noise_below_30_db(folder: Path) -> None:
    codec = load_model(folder, device=CPU, parts=["codec"]).codec
    spoken = []
    for bf16 in (False, True):
        ours = CpuCodec(codec, 3, bf16=bf16)
        codes = torch.randint(
            0, codec.dequantizer.codebook_size, (8, 2, 16), generator=torch.Generator().manual_seed(0)
        )
        pcm = torch.empty(8, 2, 1920, dtype=torch.int16)
        for frame, out in zip(codes, pcm, strict=True):
            ours.run(frame, torch.tensor([2, 0]), out)
        spoken.append(pcm.double())
    exact, rounded = spoken
    assert 0 < float((rounded - exact).norm() / exact.norm()) < 10 ** (-30 / 20)


@pytest.mark.parametrize("bf16", [False, True])
def test_only_beside_int8_weights_and_where_it_is_faster_the_codec_is_in_bf16(
    folder: Path, monkeypatch: pytest.MonkeyPatch, bf16: bool
) -> None:
    monkeypatch.setattr(cpu_backend, "has_bf16_products", lambda: bf16)
    monkeypatch.setattr(cpu_backend, "divide_threads", lambda: (1, 0))
    for int8 in (False, True):
        model = load_model(folder, device=CPU, int8=int8)
        codec = CpuBackend(model, budget(model, 1)).codec
        assert isinstance(codec, CpuCodec)
        assert (codec.dtype == torch.bfloat16) == (bf16 and int8)


# --- the codec's thread ---

DRAWN = [SamplingParams(seed=seed, max_new_tokens=50) for seed in (1, 2, 3)]


class HeldCpuCodec(HeldCodec, CpuCodec):
    def __init__(self, backend: CpuBackend) -> None:
        HeldCodec.__init__(self)
        CpuCodec.__init__(self, backend.model.codec, backend.budget.slots)

    def run(self, codes: Tensor, slots: Tensor, pcm16_out: Tensor) -> None:
        HeldCodec.run(self, codes, slots, pcm16_out)
        CpuCodec.run(self, codes, slots, pcm16_out)


@pytest.fixture
def make_backend(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., CpuBackend]:
    """Makes a backend. make_backend(threaded=True) gives the codec a thread on any machine."""
    model, threads = load_model(folder, device=CPU), torch.get_num_threads()

    def make(*, threaded: bool, options: BackendOptions = DEFAULT_OPTIONS) -> CpuBackend:
        monkeypatch.setattr(cpu_backend, "divide_threads", lambda: (threads, threads if threaded else 0))
        return CpuBackend(model, budget(model, 3), options)

    return make


def hold_codec(backend: CpuBackend) -> HeldCpuCodec:
    """Its frames wait from now on, until a call waits for them."""
    codec = HeldCpuCodec(backend)
    codec.hold()
    backend.codec = ReleasingThread(codec)
    return codec


def codec_thread(codec: HeldCodec) -> threading.Thread:
    return codec.threads[-1][0]


def frames_in_slots(backend: Backend, prompts: Prompts) -> list[FrameOutput]:
    """Two ticks in flight; slots come and go while they are."""
    runner, running, outputs, in_flight = SlotRunner(backend), set(), [], None
    for tick, slots in enumerate([[0], [0, 1], [1, 0], [0, 1, 2], [0, 1], [2], [0, 2], [2, 1, 0]]):
        if tick == 5:
            runner.release(0)
            running.remove(0)
        for slot in set(slots) - running:
            runner.admit(SlotAssignment(slot, prompts.prompts[slot], DRAWN[slot]))
        running.update(slots)
        launched = runner.launch(slots)
        if in_flight:
            outputs.append(runner.collect(in_flight))
        in_flight = launched
    return [*outputs, runner.collect(launched)]


def test_frames_with_the_codecs_own_thread_equal_frames_without(
    make_backend: Callable[..., CpuBackend], folder: Path
) -> None:
    inline, threaded = make_backend(threaded=False), make_backend(threaded=True)
    assert isinstance(inline.codec, CpuCodec) and isinstance(threaded.codec, CodecThread)
    prompts = Prompts(inline.model, folder)
    for ours, theirs in zip(frames_in_slots(threaded, prompts), frames_in_slots(inline, prompts), strict=True):
        assert ours.slots == theirs.slots
        np.testing.assert_array_equal(ours.codes, theirs.codes)
        np.testing.assert_array_equal(ours.pcm, theirs.pcm)
        np.testing.assert_array_equal(ours.failed, theirs.failed)
        assert ours.pcm.any()


def test_a_slot_that_is_released_with_a_frame_in_flight_starts_from_a_clean_state(
    make_backend: Callable[..., CpuBackend], folder: Path
) -> None:
    backend, plain = make_backend(threaded=True), make_backend(threaded=False)
    prompts = Prompts(backend.model, folder)
    first, second = (SlotAssignment(1, prompts.prompts[number], DRAWN[number]) for number in (0, 1))
    alone = SlotRunner(plain)
    alone.admit(second)
    expected = alone.collect(alone.launch([1]))
    codec, runner = hold_codec(backend), SlotRunner(backend)
    runner.admit(first)
    codec.hold()
    left = runner.launch([1])
    assert left.begun() and not left.ready() and not left.device_free()
    runner.release(1)
    assert not left.ready(), "releasing a slot does not wait"
    runner.admit(second)
    codec.free.set()  # also where `admit` did not wait
    ticket = runner.launch([1])
    runner.collect(left)
    output = runner.collect(ticket)
    np.testing.assert_array_equal(output.codes, expected.codes)
    np.testing.assert_array_equal(output.pcm, expected.pcm)


def test_an_error_of_the_codec_reaches_collect_and_nothing_else(
    make_backend: Callable[..., CpuBackend], folder: Path
) -> None:
    backend = make_backend(threaded=True)
    codec, runner = hold_codec(backend), SlotRunner(backend)
    prompt = Prompts(backend.model, folder).prompts[0]
    runner.admit(SlotAssignment(0, prompt, DRAWN[0]))
    codec.free.set()
    codec.error = RuntimeError("out of samples")
    ticket = runner.launch([0])
    ticket.wait_device_free()
    assert ticket.device_free() and ticket.ready()
    codec.error = None
    with pytest.raises(RuntimeError, match="out of samples"):
        runner.collect(ticket)
    runner.release(0)
    runner.admit(SlotAssignment(0, prompt, DRAWN[0]))
    assert runner.collect(runner.launch([0])).pcm.any()


def test_the_codecs_thread_ends_with_the_launches_and_with_the_backend(
    make_backend: Callable[..., CpuBackend], folder: Path
) -> None:
    backend = make_backend(threaded=True)
    codec, runner = hold_codec(backend), SlotRunner(backend)
    runner.admit(SlotAssignment(0, Prompts(backend.model, folder).prompts[0], DRAWN[0]))
    codec.free.set()
    with backend.launching():
        runner.collect(runner.launch([0]))
        assert codec_thread(codec).is_alive()
    assert not codec_thread(codec).is_alive()
    runner.collect(runner.launch([0]))
    thread = codec_thread(codec)
    assert thread.is_alive()
    del backend, runner
    gc.collect()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_with_one_cpu_or_without_a_codec_there_is_no_thread(
    make_backend: Callable[..., CpuBackend], folder: Path
) -> None:
    silent = make_backend(threaded=True, options=BackendOptions(codec=False))
    inline = make_backend(threaded=False)
    assert isinstance(silent.codec, SilentCodec) and isinstance(inline.codec, CpuCodec)
    before = set(threading.enumerate())
    for backend in (silent, inline):
        runner = SlotRunner(backend)
        runner.admit(SlotAssignment(0, Prompts(backend.model, folder).prompts[0], DRAWN[0]))
        with backend.launching():
            assert runner.launch([0]).ready()
            assert set(threading.enumerate()) <= before
