"""A talker step and a predictor frame on the CUDA kernels and on the Triton ones: the same codes alone and in a batch,
the same bits with and without a graph, the distance between both."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from benchmarks.cuda_kernels import Report
from benchmarks.timing import captured
from checkpoint_shapes import published_codec_config, published_config
from oscine.audio.pcm import CODEBOOKS
from oscine.kernels.cuda.operations import CudaOperations
from oscine.kernels.embed import gather
from oscine.kernels.operations import TritonOperations
from oscine.model.config import ModelConfig, read_config
from oscine.model.speech_model import SpeechModel
from oscine.runner.cuda.decode_step import DecodeStep
from oscine.runner.kv_cache import PagedKVCache
from oscine.runner.memory_budget import plan_memory
from oscine.runner.slot_state import SlotState

_BATCHES = (2, 7, 8, 9, 16, 17, 32, 64, 128)


def place_code_0(step: DecodeStep, codes: Tensor) -> None:
    """Stores the input rows of given codes 0, as the sampler does in a frame. Not a programmatic launch."""
    gather(step._first_table, codes[:, 0], step._narrow_x[1 : 2 * len(codes) : 2])


def predict(step: DecodeStep, slots: Tensor, codes: Tensor, failed: Tensor) -> None:
    place_code_0(step, codes)
    step.predict_codes(slots, codes, failed)


def published(size: str) -> ModelConfig:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "speech_tokenizer").mkdir()
        (folder / "config.json").write_text(json.dumps(published_config(size, "custom_voice")))
        (folder / "speech_tokenizer" / "config.json").write_text(json.dumps(published_codec_config()))
        return read_config(folder)


def random_model(config: ModelConfig, device: str = "cuda") -> SpeechModel:
    torch.manual_seed(0)
    with torch.device(device):
        model = SpeechModel(config).to(torch.bfloat16)
    for name, parameter in (*model.talker.named_parameters(), *model.predictor.named_parameters()):
        if "norm" in name:
            parameter.normal_(1.0, 0.1)
        else:  # wide logits: few near ties
            wider = 8.0 if "head" in name else 1.0
            parameter.normal_(0.0, 1.0 if "embedding" in name else wider * parameter.shape[-1] ** -0.5)
    for module in list(model.modules()):
        if prepare := getattr(module, "prepare", None):
            prepare()
    return model.eval().requires_grad_(False)


def random_slots(model: SpeechModel, slots: int, context: int) -> tuple[SlotState, PagedKVCache]:
    """All at the position `context`, on random keys and values, whose blocks are scattered."""
    config, like = model.config, model.talker.head.weight
    budget = plan_memory(
        config, slots=slots, positions_per_slot=1024, positions_total=None, element_bytes=2, available_bytes=None
    )
    state = SlotState.allocate(config, budget, like)
    kv = PagedKVCache.allocate(config.talker.stack, budget.blocks, like)
    kv.keys.normal_()
    kv.values.normal_(std=0.5)
    state.inputs.normal_(std=0.5)
    state.int_row("position").fill_(context)
    used = context // 64 + 1
    blocks = torch.randperm(budget.blocks - 1, device=like.device)[: (slots + 1) * used] + 1
    assert len(blocks) == (slots + 1) * used, "the context is too long for the cache"
    state.block_table[:, :used] = blocks.view(slots + 1, used)
    return state, kv


class Frames:
    """Slots in the middle of their speech, with random weights and a random KV cache. A frame is repeated, not
    advanced, so every run of it gives the same codes."""

    def __init__(self, size: str, slots: int, context: int, make: Callable[..., CudaOperations]) -> None:
        self.model = random_model(published(size))
        state, kv = random_slots(self.model, slots, context)
        self.triton, self.cuda, self.plain = (
            DecodeStep(self.model, state, kv, slots, 1, operations)
            for operations in (TritonOperations, make, lambda normed: make(normed, programmatic=False))
        )

    def codes(self, step: DecodeStep, slots: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Codes, hidden states, and the logits of the last code."""
        index = torch.tensor(slots, device="cuda")
        failed = torch.zeros(len(slots), dtype=torch.int16, device="cuda")
        codes = step.sample_codes(index, failed).clone()
        assert not failed.any(), "logits are not finite"
        return codes, step.hidden[: len(slots)].clone(), step.rest_logits[: len(slots)].clone()

    def forced(self, step: DecodeStep, slots: Sequence[int], hidden: Tensor, codes: Tensor) -> Tensor:
        """The logits of all 15 codes, [15, rows, ids], with given codes as inputs, so that both paths see the same."""
        rows, predictor = len(slots), self.model.predictor
        stack, norm = predictor.stack, cast(Tensor, predictor.stack.norm.weight)
        step.hidden[:rows] = hidden
        x = step._narrow_x[: 2 * rows]
        step._narrow_hidden(x[0::2])
        place_code_0(step, codes)
        step._pass(x, position=0, new=2)
        last, found = x[1::2], []
        qkv = step._rows_of(step._qkv, rows, step.rest_qkv.shape[-1])
        for book in range(1, CODEBOOKS):
            logits = torch.empty_like(step.rest_logits[:rows])
            step.operations.norm_linear(last, norm, stack.config.eps, predictor.heads[book - 1], logits)
            found.append(logits)
            if book < CODEBOOKS - 1:
                last = step._narrow_x[:rows]
                # Not programmatic launches: they end the pass, as the sampler does in a frame.
                last.copy_(step.rest_tables[book - 1][codes[:, book]])
                qkv.copy_(step.rest_qkv[book - 1][codes[:, book]])
                step._pass(last, position=book + 1, new=1)
        return torch.stack(found)


def _distance(a: Tensor, b: Tensor) -> float:
    return ((a.float() - b.float()).norm() / b.float().norm()).item()


@torch.inference_mode()
def run_frames(
    report: Report, size: str, rows: Sequence[int], context: int, make: Callable[..., CudaOperations]
) -> None:
    slots = max(rows)
    frames: Any = None
    with report.check(f"{size} model and tables"):
        frames = Frames(size, slots, context, make)
    if frames is None:
        return
    with report.check(f"{size} distance of the backends") as figures:
        every = list(range(min(16, slots)))
        triton, cuda = frames.codes(frames.triton, every), frames.codes(frames.cuda, every)
        figures["size of hidden states"] = triton[1].float().square().mean().sqrt().item()
        figures["hidden"] = _distance(cuda[1], triton[1])
        figures["ok hidden"] = figures["hidden"] < 0.05  # 28 layers of two orders of sums in bf16: 0.031 on an H200
        figures["equal codes"] = (cuda[0] == triton[0]).float().mean().item()
        figures["qkv tables"] = _distance(frames.cuda.rest_qkv, frames.triton.rest_qkv)
        logits = [frames.forced(step, every, triton[1], triton[0]) for step in (frames.cuda, frames.triton)]
        figures["logits with the same inputs"] = _distance(*logits)
        figures["ok logits"] = figures["logits with the same inputs"] < 0.03
        figures["equal choices"] = (logits[0].argmax(-1) == logits[1].argmax(-1)).float().mean().item()
    with report.check(f"{size} alone and in a batch") as figures:
        whole = frames.codes(frames.cuda, list(range(slots)))
        unequal = []
        for count in (1, *(batch for batch in _BATCHES if batch < slots)):
            some = frames.codes(frames.cuda, list(range(count)))
            if not all(torch.equal(part, together[:count]) for part, together in zip(some, whole, strict=True)):
                unequal.append(count)
        figures["ok"] = not unequal
        figures["batches that differ"] = unequal
        plain = frames.codes(frames.plain, list(range(slots)))
        figures["ok programmatic as plain"] = all(torch.equal(a, b) for a, b in zip(plain, whole, strict=True))
        figures["ok repeatable"] = all(
            torch.equal(a, b) for a, b in zip(frames.codes(frames.cuda, list(range(slots))), whole, strict=True)
        )
    for count in rows:
        with report.check(f"{size} frame of {count}") as figures:
            figures["ok graph as launches one by one"] = graph_as_launches(frames, count)


def graph_as_launches(frames: Frames, count: int) -> bool:
    """The times of frames are those of benchmarks/frame.py."""
    index = torch.arange(count, device="cuda")
    failed = torch.zeros(count, dtype=torch.int16, device="cuda")
    eager, _, _ = frames.codes(frames.cuda, list(range(count)))
    graph = captured(lambda: frames.cuda.sample_codes(index, failed), warm_ups=1)
    graph.replay()
    return torch.equal(frames.cuda.codes[:count], eager)
