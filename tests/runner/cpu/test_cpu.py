"""The lean parts of a frame on a CPU give what the plain ones give, whatever the predictor looks like."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.conftest import CheckpointMaker
from torch import Tensor, nn

from oscine.model.speech_model import SpeechModel
from oscine.model.weights import load_model
from oscine.prompt.builder import PromptBuilder
from oscine.prompt.tokenizer import Tokenizer
from oscine.runner.cpu import predictor as lean_predictor
from oscine.runner.cpu.layers import CpuStack
from oscine.runner.cpu.predictor import MAX_TABLE_BYTES, CpuPredictor, table_bytes
from oscine.runner.kv_cache import DecodeCacheView, PagedKVCache
from oscine.runner.memory_budget import plan_memory
from oscine.runner.reference import generate
from oscine.runner.runner import SlotAssignment
from oscine.runner.sampling import DrawTable
from oscine.runner.slot_runner import SlotRunner
from oscine.runner.torch.frame import TorchFrame
from oscine.types import CODEBOOKS, DrawParams, SamplingParams, SpeechRequest

CPU = torch.device("cpu")
VOCAB = 128  # of the published 2048 codes, so that the tables are small
GREEDY = DrawParams(greedy=True)


@pytest.fixture(scope="module", params=["0b6", "1b7"])
def folder(request: pytest.FixtureRequest, small_checkpoints: CheckpointMaker) -> Path:
    """Without and with a projection from the talker's width to the predictor's."""
    return small_checkpoints(request.param, "custom_voice")


@pytest.fixture(scope="module", params=[1, 2, 3])
def model(request: pytest.FixtureRequest, folder: Path) -> SpeechModel:
    """A predictor of so many layers, and of few codes."""
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
    codes[0, 0] = model.config.talker.eos_id  # its frame is dropped, but computed
    return codes


def plain_logits(model: SpeechModel, hidden: Tensor, codes: Tensor) -> list[Tensor]:
    cache = model.predictor.cache(len(codes))
    logits = [model.predictor.first(hidden, model.talker.code_embedding(codes[:, 0]), cache)]
    return logits + [model.predictor.next(book, codes[:, book], cache) for book in range(1, CODEBOOKS - 1)]


@pytest.mark.parametrize("rows", [1, 3])
def test_a_looked_up_first_layer_gives_the_logits_of_a_computed_one(
    model: SpeechModel, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes, hidden = random_codes(model, rows), torch.randn(rows, model.config.talker.stack.width)
    made = []

    def keep_and_follow(logits: Tensor, table: DrawTable, uniform: Tensor) -> Tensor:
        made.append(logits.clone())
        return codes[:, len(made)]

    monkeypatch.setattr(lean_predictor, "draw", keep_and_follow)
    table = DrawTable.of([DrawParams()] * rows, CPU)
    with torch.inference_mode():
        lean = CpuPredictor(model, max_rows=4)
        assert torch.equal(lean.frame_codes(hidden, codes[:, 0], table, torch.zeros(rows, CODEBOOKS)), codes)
        for ours, plain in zip(made, plain_logits(model, hidden, codes), strict=True):
            assert_close(ours, plain)


def test_one_position_per_row_is_what_the_whole_stack_gives(folder: Path) -> None:
    stack = load_model(folder, device=CPU).talker.stack
    kv = PagedKVCache.allocate(stack.config, 40, stack.layers[0].attention.out.weight)
    positions, pages = torch.tensor([0, 2020, 71]), torch.arange(1, 40).expand(3, -1).clone()
    pages[1] = pages[1].flip(0)
    lean = CpuStack(stack, max_rows=3)
    for rows in ([0, 1, 2], [1]):
        kv.keys.normal_(), kv.values.normal_()
        same = PagedKVCache(kv.keys.clone(), kv.values.clone())
        x, at = torch.randn(len(rows), stack.config.width), positions[rows]
        with torch.inference_mode():
            plain = stack(x[:, None], DecodeCacheView(kv, pages[rows], at, 2021))[:, 0]
            assert_close(lean.step(x, DecodeCacheView(same, pages[rows], at, 2021)), plain)
        assert_close(same.keys, kv.keys)


class Spoken:
    """What three requests say in slots, all together."""

    def __init__(self, model: SpeechModel, folder: Path) -> None:
        builder = PromptBuilder(model.config, Tokenizer.from_folder(folder))
        self.model = model
        self.prompts = [
            builder.build(SpeechRequest(text=text, voice="ryan"))
            for text in ("Hello there.", "And you, the wide world?", "x")
        ]

    def by_reference(self, sampling: Sequence[SamplingParams]) -> list[np.ndarray]:
        """Each of them alone."""
        said = []
        for prompt, params in zip(self.prompts, sampling, strict=True):
            steps = list(generate(self.model, [prompt], [params]))
            said.append(torch.cat([step.codes for step in steps]).numpy())
        return said

    def in_slots(self, sampling: Sequence[SamplingParams], frames: int, *, lean: bool) -> np.ndarray:
        budget = plan_memory(
            self.model.config, slots=3, positions_per_slot=256, positions_total=None, element_bytes=4,
            available_bytes=None,
        )  # fmt: skip
        runner = SlotRunner(self.model, budget)
        assert runner._frame._lean_predictor is not None
        if not lean:
            runner._frame = TorchFrame(self.model, runner._state, runner._kv, runner._codec, lean=False)
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
def test_a_lean_frame_a_plain_one_and_the_reference_say_the_same(
    model: SpeechModel, folder: Path, sampling: list[SamplingParams]
) -> None:
    spoken = Spoken(model, folder)
    lean, plain = (spoken.in_slots(sampling, 6, lean=lean) for lean in (True, False))
    alone = spoken.by_reference(sampling)
    assert sum(map(len, alone)) >= 12
    for ours, theirs, expected in zip(lean, plain, alone, strict=True):
        frames = len(expected)  # fewer where it has ended
        np.testing.assert_array_equal(ours[:frames], expected)
        np.testing.assert_array_equal(theirs[:frames], expected)


def test_tables_are_made_where_they_are_small_and_nothing_is_lean_in_bf16(folder: Path) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        model = load_model(folder, device=CPU, dtype=dtype)  # 2048 codes
        assert table_bytes(model) > MAX_TABLE_BYTES
        budget = plan_memory(
            model.config, slots=1, positions_per_slot=64, positions_total=None, element_bytes=4, available_bytes=None
        )
        frame = SlotRunner(model, budget)._frame
        assert frame._lean_predictor is None
        assert (frame._lean_talker is not None) == (dtype == torch.float32)
