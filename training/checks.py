"""Checks the training code without a GPU: the codes say what they should, the modules compute the same as the package's
plain ones, and a codec step can be captured and replayed.

    python training/checks.py

A recorded list of PyTorch calls stands in for the CUDA graph. As with a graph, recording changes nothing, Python
numbers are read once, and a replay makes the same calls on the same tensors.
"""

from __future__ import annotations

import copy
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import codec
import numpy as np
import paths  # noqa: F401
import torch
from codec import Trainer, set_rate
from codes import BEGINNINGS, FINE, LAST_PHONE, LEFT, NEXT, PHONES, SECOND_NEXT, VOICED, describe
from corpus import Corpus
from modules import CausalMemory, make_trainable
from pitch import VALUE_SAMPLES, described_phase, lock
from sizes import FRAME_SAMPLES, RATE_HZ
from step_time import write_noise
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from oscine.model.config import StackConfig
from oscine.model.layers import Attention, Stack
from oscine.model.streaming import Snake

# Calls that synchronize with the device or copy from the host.
_ASKING = (
    "_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "masked_select", "bincount", "unique", "_unique2",
    "lift_fresh", "repeat_interleave",
)  # fmt: skip
_TALKER = StackConfig(
    width=48, inner=80, layers=2, heads=4, kv_heads=2, head_dim=16, theta=10000.0, eps=1e-6, qk_norm=True
)
_CODEC = StackConfig(
    width=48, inner=80, layers=2, heads=2, kv_heads=2, head_dim=16, theta=10000.0, eps=1e-5, layer_scale=True, window=5
)


def _storages(tree: Any) -> dict[int, torch.UntypedStorage]:
    tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
    return {one.untyped_storage()._cdata: one.untyped_storage() for one in tensors}


class RecordedStep(TorchDispatchMode):
    """Records every call below autograd inside its context. On exit it restores all tensors and the random state."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self._own: set[int] = set()
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._random = torch.get_rng_state()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        assert name not in _ASKING, f"a step calls {name}, which synchronizes with the device"
        if name in ("index", "index_put_", "index_put"):
            assert all(one is None or one.dtype == torch.int64 for one in args[1]), "a mask's result has no fixed shape"
        known = _storages((args, kwargs))
        if func._schema.is_mutable:
            for key, storage in known.items():
                if key not in self._own and key not in self._before:
                    self._before[key] = storage, storage.clone()
        # Detached aliases: some calls change a tensor's own shape later.
        call = tree_map_only(Tensor, Tensor.detach, (args, kwargs or {}))
        results = func(*args, **(kwargs or {}))
        self._own |= _storages(results).keys() - known.keys()
        if torch.Tag.inplace_view not in func.tags:
            self.calls.append((func, *call, tree_map_only(Tensor, Tensor.detach, results)))
        return results

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for storage, before in self._before.values():
            storage.copy_(before)
        torch.set_rng_state(self._random)

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, results in self.calls:
            known = _storages((args, kwargs))
            fresh = [leaf for leaf in tree_leaves(results) if isinstance(leaf, Tensor)]
            fresh = [one for one in fresh if one.untyped_storage()._cdata not in known]
            if not fresh and not func._schema.is_mutable:
                continue  # a view of an existing tensor
            again = [leaf for leaf in tree_leaves(func(*args, **kwargs)) if isinstance(leaf, Tensor)]
            again = [one for one in again if one.untyped_storage()._cdata not in known]
            for old, new in zip(fresh, again, strict=True):
                old.copy_(new)


class _Stream:
    def wait_stream(self, other: Any) -> None: ...


class _Graph:
    recorded: RecordedStep

    def replay(self) -> None:
        self.recorded.replay()


@contextmanager
def _recording(graph: _Graph, **_: Any) -> Iterator[None]:
    graph.recorded = RecordedStep()
    with graph.recorded:
        yield


@contextmanager
def recorded_calls_as_graphs() -> Iterator[None]:
    replaced = {
        "Stream": _Stream, "CUDAGraph": _Graph, "graph": _recording, "current_stream": _Stream,
        "stream": lambda _: nullcontext(), "synchronize": lambda: None, "set_stream": lambda _: None,
    }  # fmt: skip
    with mock.patch.multiple(torch.cuda, **replaced):
        yield


def trained(work: Path, *, captured: bool) -> tuple[list[dict[str, float]], Trainer]:
    """Ten steps: each kind of step is captured in its fourth call and then replayed."""
    steps = 10
    options = Namespace(
        work=work, sizes="toy", steps=steps, limit_s=None, batch=2, rate=1e-3, seed=1, device="cpu", bf16=False,
        compile=False, save_s=60.0, again=False, judge_from=0.5, judge_rate=0.5, judged=1.0, recognized=0.3,
        phase=0.5, heads=10.0, spectrum=30.0, graph=False,
    )  # fmt: skip
    torch.manual_seed(1)
    trainer = Trainer(options)
    trainer.captures = captured
    corpus = Corpus(work / "speech", trainer.device)
    trainer.model.train()
    losses = []
    for _ in range(steps):
        set_rate(trainer.making, trainer.progress.rate(1e-3, warm_steps=4))
        set_rate(trainer.judging, trainer.progress.rate(1e-3, warm_steps=4))
        losses.append({name: float(loss) for name, loss in trainer.step(corpus).items()})
        trainer.progress.step += 1
    return losses, trainer


def check_steps_can_be_replayed() -> None:
    short = mock.patch.object(codec, "_RAMP", (0, 2))
    with tempfile.TemporaryDirectory() as scratch, recorded_calls_as_graphs(), short:
        work = Path(scratch)
        write_noise(work / "speech")
        plain, by_hand = trained(work, captured=False)
        replayed, by_replay = trained(work, captured=True)
    assert by_replay.current_step.recorded
    for ours, theirs in zip(replayed, plain, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            assert abs(ours[name] - value) <= 1e-5 * (1 + abs(value)), (name, ours[name], value)
    for name, value in by_hand.model.state_dict().items():
        torch.testing.assert_close(by_replay.model.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    names = sorted({call[0]._schema.name for call in by_replay.current_step._graph.recorded.calls})
    print(f"{len(plain)} steps equal their replays; {len(names)} kinds of calls")


def check_pitch_is_locked() -> None:
    """Every frame has whole quarter periods, the phase has no steps, and the codes say both."""
    values = torch.arange(400.0)
    f0 = torch.stack((200 + 60 * torch.sin(values / 20), torch.where(values % 100 < 60, 110 + values / 10, 0.0)))
    first, frames = torch.tensor([0, 777]), 60
    locked = lock(f0, first, frames)
    phase = locked.phase(400 * VALUE_SAMPLES).double()
    steps = (phase.diff(dim=1) + 0.5) % 1 - 0.5  # modulo a period
    assert bool((steps > 50 / RATE_HZ).all()) and bool((steps < 270 / RATE_HZ).all())
    for row in range(2):
        quarters = locked.quarters[row].numpy()
        codes = describe(
            np.zeros(frames * 16, np.uint8), quarters, locked.bends[row].numpy(), np.ones(frames * 4, bool),
            np.zeros(frames * 4, np.float32), 0,
        )  # fmt: skip
        fine, begins = np.divmod(codes[:, FINE], 4)
        ends = codes[:, VOICED] % 4
        assert np.array_equal(ends, (begins + fine) % 4) and np.array_equal(begins[1:], ends[:-1])
        starts = phase[row, int(first[row]) + FRAME_SAMPLES * torch.arange(frames)].numpy()
        wrong = (starts - begins / 4 + 0.5) % 1 - 0.5
        assert np.abs(wrong).max() < 1e-3, wrong
        places = int(first[row]) + FRAME_SAMPLES // 8 * torch.arange(frames * 8)
        told = described_phase(torch.from_numpy(codes.astype(np.int64))[None], 8)[0]
        wrong = (told - phase[row, places] + 0.5) % 1 - 0.5
        assert wrong.abs().max() < 1e-3, wrong
    phones = np.repeat(np.array([5, 6, 0, 7], np.uint8), (24, 10, 15, 15))  # they begin at 24, 34 and 49
    codes = describe(
        phones, np.ones(4, np.int64), np.zeros(4, np.float32), np.ones(16, bool), np.zeros(16, np.float32), 1
    )
    ahead = codes[:, [LEFT, NEXT, SECOND_NEXT]].tolist()
    assert ahead == [[8, 6, 0], [2, 0, 7], [1, 7, 0], [0, 0, 0]], ahead
    slots = codes[:, [*PHONES, LAST_PHONE]].flatten().tolist()
    assert slots == [5, 5, 5, 5, 5, 5, 6, 6, 0, 0, 0, 0, 7, 7, 7, 7], slots
    # The first places of these frames are 4, 3, 2 and 1.
    assert codes[:, BEGINNINGS].tolist() == [40, 32 + 2, 24 + 1, 16 + 1], codes[:, BEGINNINGS]
    long = describe(np.zeros(64, np.uint8), np.ones(4, np.int64), np.zeros(4, np.float32), np.ones(16, bool),
                    np.zeros(16, np.float32), 3)  # fmt: skip
    assert long[:, LEFT].tolist() == [48, 32, 16, 0] and long.max() < 64, long
    print("the pitch is locked to the frames; the codes say its phase, and the next phones")


def gradients(module: nn.Module, *arguments: Any) -> list[Tensor]:
    """The output, and the gradients of the first argument and of all parameters."""
    x = arguments[0].clone().requires_grad_(True)
    out = module(x, *arguments[1:])
    (out * torch.arange(out.numel()).view(out.shape).remainder(7)).mean().backward()
    return [out.detach(), x.grad, *(parameter.grad for parameter in module.parameters())]


def assert_same(plain: nn.Module, ours: nn.Module, *arguments: Any) -> None:
    for value, wanted in zip(gradients(ours, *arguments), gradients(plain, *arguments), strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-5)


def _join_norm_weights(part: Attention, _: Any) -> None:
    """Does what Attention.prepare does, and keeps gradients."""
    q, k = part.q_norm.weight, part.k_norm.weight
    part.qk_weight = torch.cat((q.expand(part.heads, -1), k.expand(part.kv_heads, -1)))[:, None]


def check_modules_equal_the_plain_ones() -> None:
    torch.manual_seed(0)
    for config in (_TALKER, _CODEC):
        plain = Stack(config)
        for parameter in plain.parameters():
            nn.init.normal_(parameter, 0.2, 0.2)
        ours = copy.deepcopy(plain)
        make_trainable(ours)
        for part in plain.modules():
            if isinstance(part, Attention) and part.qk_norm:
                part.register_forward_pre_hook(_join_norm_weights)
        assert_same(plain, ours, torch.randn(3, 11, config.width), CausalMemory(11, torch.device("cpu"), config.window))
    snake = Snake(6)
    nn.init.normal_(snake.alpha)
    nn.init.normal_(snake.beta)
    ours = copy.deepcopy(snake)
    make_trainable(ours)
    x = torch.randn(4, 6, 50)
    alpha, beta = snake.alpha, snake.beta
    snake.forward = lambda x: x + torch.sin(x * alpha.exp()[:, None]) ** 2 / (beta.exp() + 1e-9)[:, None]
    assert_same(snake, ours, x)
    print("modules equal the plain ones, forward and backward")


def main() -> None:
    torch.set_num_threads(1)
    check_pitch_is_locked()
    check_modules_equal_the_plain_ones()
    check_steps_can_be_replayed()


if __name__ == "__main__":
    main()
