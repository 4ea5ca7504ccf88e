"""The launches of one codec step: their layers, shapes, work and device times, with random weights."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.timing import captured, replay_us
from checkpoint_shapes import published_codec_config
from oscine.kernels import residual_unit as unit_kernel
from oscine.kernels.conv import Conv, Rows, Workspace
from oscine.kernels.residual_unit import UnitLayers
from oscine.model.config import CodecConfig, parse_codec_config
from oscine.runner.cuda import codec as cuda_codec
from oscine.runner.cuda import codec_stack
from oscine.runner.cuda.codec import CudaCodec
from oscine.runner.cuda.codec_stack import TritonCodecStack
from oscine.runner.cuda.triton_programs import Compiled, compile_programs, distinct_programs, gpu_target

BYTES_PER_US, FLOPS_PER_US = 4.2e6, 8e8  # of an H200: as measured with copies; 0.81 of the peak of dense bf16
# fused_unit: a residual unit in one launch; else it is two of conv.
WRAPPERS = ("dequantize", "conv", "attend", "depthwise_norm", "fused_unit", "last_conv")
KERNELS = ("_dequantize", "_conv", "_attend", "_depthwise_norm", "_residual_unit", "_last_conv")
STEP_ROWS = (1, 8, 32, 64, 128, 256)
FULL_WINDOW = 200  # frames: every place of the window is filled, and every ring has wrapped
_REPLAYS = 9  # that are profiled, after one more
_COLD_BYTES, MAX_COPIES = 100 << 20, 24  # twice an H200's L2 cache


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    wrapper: str
    call: Callable[..., None]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self) -> None:
        self.call(*self.args, **self.kwargs)

    @property
    def layer(self) -> Conv | None:
        return self.args[0] if self.wrapper in ("conv", "last_conv") else None

    @property
    def unit(self) -> UnitLayers | None:
        return self.args[0] if self.wrapper in ("fused_unit", "residual_unit") else None

    @property
    def rows(self) -> Rows:
        return next(value for value in self.args if isinstance(value, Rows))

    @property
    def flops(self) -> int:
        layers = [self.unit.conv1, self.unit.conv2] if self.unit else [self.layer] if self.layer else []
        return sum(2 * len(self.rows) * layer.columns * layer.weight.numel() for layer in layers)

    @property
    def nbytes(self) -> int:
        """What must be read and written once."""
        rows = len(self.rows)
        if self.wrapper == "attend":
            keys = self.args[1]
            return 2 * rows * keys[0].numel() * keys.element_size() + sum(self.args[at].nbytes for at in (0, 5))
        if self.wrapper == "depthwise_norm":
            out = self.args[6]
            return 2 * int(out.nbytes) + rows * (len(self.args[1]) - 1) * out.shape[1] * out.element_size()
        if unit := self.unit:
            first, width = unit.conv1, unit.conv1.weight.element_size()
            dense = 2 if self.kwargs.get("raw") is None else 3  # residual, out, raw
            columns = rows * (first.columns * (1 + dense) + (first.taps - 1) * first.dilation)
            return columns * unit.channels * width + first.weight.nbytes + unit.conv2.weight.nbytes
        if self.layer is None:
            return rows * 16 * self.args[4].shape[2] * 4
        layer, width = self.layer, self.layer.weight.element_size()
        past = (layer.taps - 1) * layer.dilation
        read = rows * (layer.columns + past) * layer.inputs * width + layer.weight.nbytes
        results = [self.kwargs.get(name) for name in ("residual", "raw", "out")]
        halved = 2 if layer.activation == "swiglu" else 1
        each = rows * layer.columns * len(layer.weight) // halved * width
        return read + each * max(1, sum(result is not None for result in results))

    @property
    def floor_us(self) -> float:
        return max(self.nbytes / BYTES_PER_US, self.flops / FLOPS_PER_US)


def published_codec() -> CodecConfig:
    return parse_codec_config(published_codec_config())


class Step:
    """One codec step of `rows` streams, whose buffers stay where they are."""

    def __init__(self, codec: CudaCodec, config: CodecConfig, rows: int, device: str) -> None:
        self.codec, self.rows = codec, rows
        with torch.device(device):
            self._codes = torch.randint(0, config.decoder.codebook_size, (rows, 16))
            self._slots = torch.arange(rows, dtype=torch.int32)
            self._pcm = torch.zeros(rows, config.samples_per_frame, dtype=torch.int16)

    def run(self, samples_out: Tensor | None = None) -> None:
        self.codec.run(self._codes, self._slots, self._pcm, samples_out)

    def launches(self) -> list[Launch]:
        found: list[Launch] = []
        with ExitStack() as stack:
            for module, wrapper in itertools.product((cuda_codec, codec_stack, unit_kernel), WRAPPERS):
                if hasattr(module, wrapper):
                    stack.enter_context(_recording(module, wrapper, found))
            self.run()
        return found

    def units(self) -> list[Launch]:
        """Residual units, each one or two launches."""
        found: list[Launch] = []
        with _recording(cuda_codec, "residual_unit", found):
            self.run()
        return found


@contextmanager
def _recording(module: ModuleType, wrapper: str, found: list[Launch]) -> Iterator[None]:
    call = getattr(module, wrapper)

    def record(*args: Any, **kwargs: Any) -> None:
        found.append(Launch(wrapper, call, args, kwargs))
        call(*args, **kwargs)

    with mock.patch.object(module, wrapper, record):
        yield


def compile_recorded(recordings: list[Any], capability: int, processes: int) -> dict[str, Any]:
    """Compiles in parallel and without the GPU, into Triton's cache on disk; before this process uses the GPU, as
    compilation forks."""
    programs, begun_s = distinct_programs(recordings, gpu_target(capability)), time.perf_counter()
    results: list[Compiled] = []
    compile_programs(programs, gpu_target(capability), processes, lambda result, done: results.append(result))
    problems, seconds = {one.name: one.problem for one in results if one.problem}, time.perf_counter() - begun_s
    print(f"{len(programs)} programs compiled in {seconds:.0f} s, failed: {problems}", flush=True)
    return {"programs": len(programs), "seconds": seconds, "problems": problems}


def layer_names(codec: CudaCodec) -> dict[int, str]:
    """Names by the `id` of the layer, or of the layers of a unit."""
    parts: dict[str, Conv | UnitLayers] = {
        "into stack": codec._into_stack,
        "vocoder in": codec._vocoder_in,
        "vocoder out": codec.vocoder_out,
    }
    stack = codec.stack
    for i, layer in enumerate(stack.layers if isinstance(stack, TritonCodecStack) else ()):
        parts |= {f"stack {i} {name}": getattr(layer, name) for name in ("qkv", "out", "gate_up", "down")}
    for i, step in enumerate(codec._upsamplings):
        parts |= {f"upsampling {i} {name}": getattr(step, name) for name in ("upsample", "up", "down")}
    for i, block in enumerate(codec.blocks):
        parts[f"block {i} upsample"] = block.upsample
        for j, unit in enumerate(block.units):
            name = f"block {i} unit {j}"
            parts |= {name: unit, f"{name} conv1": unit.conv1, f"{name} conv2": unit.conv2}
    return {id(layer): name for name, layer in parts.items()}


def kernel_spans_us(graph: torch.cuda.CUDAGraph, kernels: tuple[str, ...]) -> list[tuple[str, float]]:
    """The graph's kernels whose names begin so, in order, with the time from the start of each to the next one's."""
    events = _kernel_events(graph, kernels)
    launches, odd = divmod(len(events), _REPLAYS + 1)
    if odd:
        raise RuntimeError(f"the profiler saw {len(events)} kernels, no multiple of {_REPLAYS + 1}")
    spans = [(event.time_range.start, event.time_range.end) for event in events]
    times = torch.tensor(spans, dtype=torch.float64).view(_REPLAYS + 1, launches, 2)[1:]
    begins, ends = times[..., 0], times[..., 1]
    until_next = (torch.cat((begins[:, 1:], ends[:, -1:]), 1) - begins).median(0).values  # of all replays but the first
    return [(event.name, us) for event, us in zip(events[:launches], until_next.tolist(), strict=True)]


def _kernel_events(graph: torch.cuda.CUDAGraph, kernels: tuple[str, ...]) -> list[Any]:
    """Kernel events of several replays, by their start."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(_REPLAYS + 1):
            graph.replay()
            torch.cuda.synchronize()
    events = profile.events()
    found = [event for event in events if event.device_type.name == "CUDA" and event.name.startswith(kernels)]
    return sorted(found, key=lambda event: event.time_range.start)


def step_times_us(config: Any, codec: Any, slots: int) -> dict[str, float]:
    runner = CudaCodec(codec, slots, slots)
    runner.state.frames.fill_(FULL_WINDOW)
    counts = [rows for rows in STEP_ROWS if rows <= slots]
    return {str(rows): replay_us(captured(Step(runner, config, rows, "cuda").run), 15) for rows in counts}


# --- one launch by itself ---


def _copied(layer: Conv | UnitLayers) -> Any:
    if isinstance(layer, UnitLayers):
        return UnitLayers(_copied(layer.conv1), _copied(layer.conv2))
    return replace(layer, weight=layer.weight.clone())


def _weight_bytes(layer: Conv | UnitLayers) -> int:
    if isinstance(layer, UnitLayers):
        return layer.conv1.weight.nbytes + layer.conv2.weight.nbytes
    return layer.weight.nbytes


class Trial:
    """One launch, or a residual unit, on buffers of its own, whose weights are not in a cache when it is timed."""

    def __init__(self, launch: Launch, workspace: Workspace) -> None:
        layer, x, rows, _ = launch.args
        copies = min(MAX_COPIES, -(-_COLD_BYTES // _weight_bytes(layer)))
        self._layers = [layer, *(_copied(layer) for _ in range(copies - 1))]
        self._launch, self._rest = launch, (x, rows, workspace)
        self._before: Tensor | None = launch.kwargs.get("residual")
        self._kwargs = {name: old.clone() for name, old in launch.kwargs.items() if old is not None}
        if self._before is not None and launch.kwargs.get("raw") is self._before:
            self._kwargs["raw"] = self._kwargs["residual"]
        self._results = [name for name in ("raw", "out") if name in self._kwargs]

    def results(self) -> list[Tensor]:
        for name in self._results:
            self._kwargs[name].zero_()
        if self._before is not None:
            self._kwargs["residual"].copy_(self._before)
        self._launch.call(self._layers[0], *self._rest, **self._kwargs)
        return [self._kwargs[name].clone() for name in self._results]

    def us(self) -> float:
        def run() -> None:
            for layer in self._layers:
                self._launch.call(layer, *self._rest, **self._kwargs)

        return replay_us(captured(run, warm_ups=1), 7) / len(self._layers)


def compare(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> str:
    pairs = list(zip(actual, expected, strict=True))
    if all(torch.equal(a.contiguous().view(torch.int16), b.contiguous().view(torch.int16)) for a, b in pairs):
        return "same"
    wrong = max(((a.float() - b.float()).norm() / b.float().norm()).item() for a, b in pairs)
    return f"off by {wrong:.1e}" if wrong < 1e-2 else f"WRONG by {wrong:.1e}"
