"""The codec on a CPU as recorded steps: the samples of TorchCodec with a fraction of its calls. CodecThread computes
them while the codes of the next frame are made.

Signals are [channels, rows, columns], so that a convolution of all rows is one product. The tails of a slot's
StreamState are one row of memory, in the order of the signal path, so that one call loads or stores them all.

In bf16, the products of convolutions and of their MLPs round inputs, weights and outputs; signals and sums stay fp32.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oscine.audio.pcm import CODEBOOKS
from oscine.model.codec import Codec, ConvNeXt, ResidualUnit
from oscine.model.device import set_own_threads, usable_cpus
from oscine.model.layers import attention
from oscine.model.streaming import CausalConv, CausalUpsample, Snake, StreamState
from oscine.runner.backend import SlotCodec
from oscine.runner.cpu.layers import CpuStack, Rope, StackBuffers
from oscine.runner.cpu.steps import BufferPool, RecordedStep

_AnyConv = CausalConv | CausalUpsample


class CpuCodec(SlotCodec):
    @torch.inference_mode()
    def __init__(self, codec: Codec, slots: int, *, bf16: bool = False) -> None:
        self.scratch = slots
        start = codec.start(1, torch.device("cpu"))
        self._frames = start.frames.new_zeros(slots + 1)
        self._tails = torch.zeros(slots + 1, sum(tail.numel() for tail in start.tails))
        self.nbytes = self._tails.nbytes + self._frames.nbytes
        self._codec = codec
        self._stack, self._pool = CpuStack(codec.stack, slots + 1, same_bits=False), BufferPool(slots + 1)
        self.dtype = torch.bfloat16 if bf16 else torch.float32  # of products
        convs = [conv for conv in codec.modules() if isinstance(conv, _AnyConv)]
        convnexts: Any = codec.convnexts
        linears = [linear for convnext in convnexts for linear in (convnext.up, convnext.down)]
        self._matrices: dict[nn.Module, Tensor] = {conv: _matrix(conv).to(self.dtype) for conv in convs}
        self._matrices |= {linear: linear.weight.to(self.dtype) for linear in linears}
        self._recorded: dict[int, _RecordedFrame] = {}

    def state_views(self, slot: int) -> tuple[Tensor, ...]:
        return self._frames[slot : slot + 1], self._tails[slot]

    def load_state(self, slot: int, state: StreamState) -> None:
        self.restore(slot, (state.frames, torch.cat([tail.flatten() for tail in state.tails])))

    @torch.inference_mode()
    def run(self, codes: Tensor, slots: Tensor, pcm16_out: Tensor) -> None:
        rows, index = len(codes), slots.long()
        if rows not in self._recorded:
            tails = self._pool.take("tails", rows, self._tails.shape[1])
            self._recorded[rows] = _RecordedFrame(self._codec, self._stack, self._matrices, self._pool, tails)
        frame = self._recorded[rows]
        torch.clamp(codes, 0, self._codec.dequantizer.codebook_size - 1, out=frame.codes)
        torch.index_select(self._frames, 0, index, out=frame.frames)
        torch.index_select(self._tails, 0, index, out=frame.tails)
        frame.step.replay()
        self._frames.index_copy_(0, index, frame.frames + 1)
        self._tails.index_copy_(0, index, frame.tails)
        pcm16_out.copy_(frame.samples)


def _matrix(conv: _AnyConv) -> Tensor:
    """Returns the weight as [outputs, inputs * taps]. A transposed convolution becomes one that computes `rate` columns
    at once from the last one or two input columns; the second half of its kernel applies to the earlier column."""
    weight = conv.weight
    if isinstance(conv, CausalUpsample):
        weight = weight.unflatten(2, (conv.past + 1, conv.rate)).flip(2).permute(1, 3, 0, 2)  # taps last
    return weight.reshape(-1, weight.shape[-2] * weight.shape[-1]).contiguous()


def _bias(conv: _AnyConv) -> Tensor:
    """Returns the bias as [outputs, 1, 1], to be added to signals."""
    assert conv.bias is not None
    return conv.bias[:, None, None]


class _RecordedFrame:
    """Records Codec.decode of one frame for a fixed number of rows."""

    def __init__(
        self, codec: Codec, stack: CpuStack, matrices: dict[nn.Module, Tensor], pool: BufferPool, tails: Tensor
    ) -> None:
        self._dtype = matrices[codec.vocoder_in].dtype
        self._stack, self._matrices, self._pool, self._rows = stack, matrices, pool, len(tails)
        self.step, self.tails, self._tails_used = RecordedStep(), tails, 0
        self.codes = torch.zeros(self._rows, CODEBOOKS, dtype=torch.int64)
        self.frames = torch.zeros(self._rows, dtype=torch.int64)  # decoded before this one
        # Any: the elements of a ModuleList are typed as Module.
        upsamples: Any = zip(codec.upsamples, codec.convnexts, strict=True)
        blocks: Any = codec.blocks
        x = self._conv(codec.pre_conv, self._dequantized(codec))
        self._transform(codec, x)
        for upsample, convnext in upsamples:
            x = self._upsample(upsample, x)
            self._convnext(convnext, x)
        x = self._conv(codec.vocoder_in, x)
        for block in blocks:
            x = self._upsample(block.upsample, x, block.snake)
            for unit in block.units:
                self._unit(unit, x)
        self.samples = self._conv(codec.vocoder_out, x, codec.snake)[0]  # [rows, columns], scaled to PCM16
        self.step.add(self.samples.clamp_, -1, 1)
        self.step.add(self.samples.mul_, 32767)
        self.step.add(self.samples.round_)  # half to even, as audio.pcm16
        assert self._tails_used == tails.shape[1], (self._tails_used, tails.shape)

    def _dequantized(self, codec: Codec) -> Tensor:
        tables, rows = codec.dequantizer.tables, self._rows
        ids = torch.zeros_like(self.codes)
        self.step.add(torch.add, self.codes, torch.arange(CODEBOOKS) * codec.dequantizer.codebook_size, out=ids)
        entries = self._pool.take("entries", rows, CODEBOOKS, tables.shape[1])
        self.step.add(torch.index_select, tables, 0, ids.flatten(), out=entries.flatten(0, 1))
        summed = self._pool.take("summed", rows, tables.shape[1])
        self.step.add(torch.sum, entries, 1, out=summed)
        return summed.T[:, :, None]

    def _transform(self, codec: Codec, x: Tensor) -> None:
        """Updates x in place."""
        config, signal = self._stack.config, x.flatten(1)  # one column
        at, rope = StackBuffers(config, self._rows, self._stack.pool), Rope(config, self._rows)
        self.step.add(rope.set, self.frames.numpy())
        self.step.add(torch.addmm, codec.stack_in.bias, signal.T, codec.stack_in.weight.T, out=at.x.tensor)
        window = codec.config.decoder.stack.window
        mask = self._window_mask(window)
        windows = [(self._window(at.k, window), self._window(at.v, window)) for _ in range(config.layers)]

        def attend(layer: int) -> Tensor:
            (keys, append_key), (values, append_value) = windows[layer]
            append_key.replay()
            append_value.replay()
            return attention(at.q, keys, values, mask=mask)

        self._stack.record(self.step, at, rope, attend)
        weight, bias = codec.stack_out.weight, codec.stack_out.bias[:, None]
        self.step.add(torch.addmm, bias, weight, at.normed.tensor.T, out=signal)

    def _window_mask(self, window: int) -> Tensor:
        """Returns a mask for the scores that hides positions before the stream's first frame."""
        ages = torch.arange(window - 1, -1, -1)
        mask, hidden = torch.zeros(self._rows, 1, 1, window), torch.zeros(self._rows, 1, 1, window, dtype=torch.bool)
        self.step.add(torch.gt, ages, self.frames[:, None, None, None], out=hidden)
        self.step.add(mask.zero_)
        self.step.add(mask.masked_fill_, hidden, float("-inf"))
        return mask

    def _window(self, new: Tensor, window: int) -> tuple[Tensor, RecordedStep]:
        """Returns the window's keys or values, after recording a step that appends `new` [rows, kv heads, 1,
        head_dim]."""
        rows, kv_heads, _, dim = new.shape
        step, tail = RecordedStep(), self._tail(kv_heads, window - 1, dim)
        seen = torch.zeros(rows, kv_heads, window, dim)
        step.add(seen[:, :, :-1].copy_, tail)
        step.add(seen[:, :, -1:].copy_, new)
        step.add(tail.copy_, seen[:, :, 1:])
        return seen, step

    def _convnext(self, convnext: ConvNeXt, x: Tensor) -> None:
        """Updates x in place."""
        conv = convnext.depthwise
        seen = self._seen(conv, x)
        products, mixed = self._like("columns", seen), self._like("mixed", x)
        self.step.add(torch.mul, seen, conv.weight[:, 0, :, None, None], out=products)
        self.step.add(torch.sum, products, 1, out=mixed)
        self.step.add(mixed.add_, _bias(conv))

        dtype, up, down = self._dtype, self._matrices[convnext.up], self._matrices[convnext.down]
        up_bias, down_bias = convnext.up.bias.to(dtype), convnext.down.bias.to(dtype)

        def add_mlp(signal: Tensor, columns: Tensor) -> None:
            wide = F.gelu(F.linear(convnext.norm(columns).to(dtype), up, up_bias))
            signal.add_((convnext.gamma * F.linear(wide, down, down_bias)).T)

        self.step.add(add_mlp, x.flatten(1), mixed.flatten(1).T)

    def _unit(self, unit: ResidualUnit, x: Tensor) -> None:
        """Updates x in place."""
        wide = self._conv(unit.conv1, x, unit.snake1, "wide")
        self._snake(unit.snake2, wide, wide)
        self.step.add(x.add_, _bias(unit.conv2))
        matrix = self._matrices[unit.conv2]
        if self._dtype == torch.float32:
            self.step.add(x.flatten(1).addmm_, matrix, wide.flatten(1))
            return
        rounded, product = self._like("columns", wide, self._dtype), self._like("product", x, self._dtype)
        self.step.add(rounded.copy_, wide)
        self.step.add(torch.mm, matrix, rounded.flatten(1), out=product.flatten(1))
        self.step.add(x.add_, product)

    def _conv(self, conv: CausalConv, x: Tensor, snake: Snake | None = None, name: str = "x") -> Tensor:
        out = self._signal(name, conv.out_channels, x.shape[2])
        columns, matrix = self._columns(conv, x, snake), self._matrices[conv]
        if self._dtype == torch.float32:
            self.step.add(torch.addmm, _bias(conv)[:, 0], matrix, columns, out=out.flatten(1))
            return out
        product = self._like("product", out, self._dtype)
        self.step.add(torch.mm, matrix, columns, out=product.flatten(1))
        self.step.add(torch.add, product, _bias(conv), out=out)
        return out

    def _upsample(self, upsample: CausalUpsample, x: Tensor, snake: Snake | None = None) -> Tensor:
        outputs, rate, columns = upsample.out_channels, upsample.rate, x.shape[2]
        spread = self._like("product", torch.empty(outputs * rate, self._rows, columns, device="meta"), self._dtype)
        self.step.add(torch.mm, self._matrices[upsample], self._columns(upsample, x, snake), out=spread.flatten(1))
        out = self._signal("x", outputs, columns * rate)
        in_order = spread.unflatten(0, (outputs, rate)).permute(0, 2, 3, 1)
        self.step.add(torch.add, in_order, _bias(upsample)[..., None], out=out.unflatten(2, (columns, rate)))
        return out

    def _columns(self, conv: _AnyConv, x: Tensor, snake: Snake | None) -> Tensor:
        """Returns the input of every output column (im2col): [channels * taps, rows * columns]."""
        seen = self._seen(conv, x, snake)
        columns = self._like("columns", seen, self._dtype)
        self.step.add(columns.copy_, seen)
        return columns.flatten(2).flatten(0, 1)

    def _seen(self, conv: _AnyConv, x: Tensor, snake: Snake | None = None) -> Tensor:
        """Returns a view [channels, taps, rows, columns] of x after the snake, joined to its tail, and updates the
        tail."""
        channels, rows, columns = x.shape
        joined = self._signal("joined", channels, conv.past + columns)
        if conv.past:
            tail = self._tail(channels, conv.past).transpose(0, 1)
            self.step.add(joined[:, :, : conv.past].copy_, tail)
        new = joined[:, :, conv.past :]
        if snake is None:
            self.step.add(new.copy_, x)
        else:
            self._snake(snake, x, new)
        if conv.past:
            self.step.add(tail.copy_, joined[:, :, columns:])
        dilation = conv.step if isinstance(conv, CausalConv) else 1
        stride = conv.past + columns
        shape = (channels, conv.past // dilation + 1, rows, columns)
        return joined.as_strided(shape, (rows * stride, dilation, stride, 1))

    def _snake(self, snake: Snake, x: Tensor, out: Tensor) -> None:
        """Records the activation; `out` may be x."""
        wave = self._like("wave", x)
        self.step.add(torch.mul, x, snake.rate[:, None], out=wave)
        self.step.add(torch.sin, wave, out=wave)
        self.step.add(torch.mul, wave, wave, out=wave)
        self.step.add(torch.addcmul, x, wave, snake.depth[:, None], out=out)

    def _tail(self, *shape: int) -> Tensor:
        """Returns the next of the rows' tails, [rows, *shape]."""
        begin = self._tails_used
        self._tails_used += math.prod(shape)
        return self.tails[:, begin : self._tails_used].unflatten(1, shape)

    def _signal(self, name: str, channels: int, columns: int) -> Tensor:
        return self._pool.take(name, self._rows, channels * columns).view(channels, self._rows, columns)

    def _like(self, name: str, x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        memory = self._pool.take(name, self._rows, -(-x.numel() * dtype.itemsize // (4 * self._rows)))
        return memory.flatten().view(dtype)[: x.numel()].view(x.shape)


def divide_threads() -> tuple[int, int]:
    """Returns torch's threads for the codes and for the codec: together as many as the calling thread has. With 0 for
    the codec, it has no thread of its own. Each getting all threads was slower on two cores than one thread each."""
    threads = torch.get_num_threads()
    if threads < 2 or usable_cpus() < 2:
        return threads, 0
    return threads - threads // 2, threads // 2


class _Job(NamedTuple):
    codes: Tensor
    slots: Tensor
    pcm: Tensor
    done: Future[float]


class CodecThread(SlotCodec):
    """Runs another codec on a thread, which the first `run` starts. `close` ends the thread, and so does the end of
    this object."""

    def __init__(self, codec: SlotCodec, threads: int) -> None:
        self.scratch, self.nbytes = codec.scratch, codec.nbytes
        self._codec, self._threads = codec, threads  # torch's number of threads
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()  # not bounded: the finalizer must not wait
        self._thread: threading.Thread | None = None
        self._runs: deque[Future[float]] = deque(maxlen=2)  # the last two
        weakref.finalize(self, self._jobs.put, None).atexit = False  # the process ends a daemon thread by itself

    @property
    def last_run(self) -> Future[float]:
        """Completes with the samples of the last `run`. The result is the time of that, or the error."""
        return self._runs[-1]

    def run(self, codes: Tensor, slots: Tensor, pcm16_out: Tensor) -> None:
        """Returns at once. The tensors must not change before `last_run` is done."""
        if self._thread is None:
            work = (self._codec, self._jobs, self._threads)
            self._thread = threading.Thread(target=_run_jobs, args=work, name="oscine-codec", daemon=True)
            self._thread.start()
        if len(self._runs) == 2:
            self._runs[0].exception()  # waits, so that at most one run is queued behind another
        self._runs.append(Future())
        self._jobs.put(_Job(codes, slots, pcm16_out, self.last_run))

    def wait(self) -> None:
        """Waits until the samples of every `run` are complete. Their errors belong to `last_run`."""
        for run in self._runs:
            run.exception()

    def close(self) -> None:
        """Ends the thread after its queued jobs. Another `run` would start it again."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    # Every use of a state waits: a frame in flight may belong to the slot's previous stream and would overwrite it.
    def load_state(self, slot: int, state: StreamState) -> None:
        self.wait()
        self._codec.load_state(slot, state)

    def state_views(self, slot: int) -> tuple[Tensor, ...]:
        self.wait()  # for `snapshot` and `restore` too
        return self._codec.state_views(slot)

    def cleared_views(self, slot: int) -> tuple[Tensor, ...]:
        self.wait()  # for `reset` too
        return self._codec.cleared_views(slot)


def _run_jobs(codec: SlotCodec, jobs: SimpleQueue[_Job | None], threads: int) -> None:
    """Runs the thread's jobs. It refers to the codec but not to its CodecThread, which could otherwise never be
    freed."""
    set_own_threads(threads)
    while job := jobs.get():
        try:
            codec.run(job.codes, job.slots, job.pcm)
        except BaseException as error:
            job.done.set_exception(error)
        else:
            job.done.set_result(time.monotonic())
