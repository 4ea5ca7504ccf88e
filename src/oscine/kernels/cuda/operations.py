"""Runs the operations of a decode step (interface: `kernels/operations.py`) and of the codec's transformer on the CUDA
kernels, for Hopper.

Launches are programmatic: a kernel begins while the one before it ends. That is safe because every kernel waits before
it reads or writes what others write. What the attention kernels read before they wait was written before the last
launch that was not programmatic, or before the last `sample`, which lets the next kernel start only after its own wait.
So a step must begin with a launch that is not programmatic, and a sampler must lie between two passes of the predictor.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from oscine.kernels.attention import PagedCache, QkvNorms
from oscine.kernels.conv import Rows
from oscine.kernels.cuda.compiler import CubinCache, default_cache
from oscine.kernels.cuda.driver import Kernel
from oscine.kernels.cuda.launches import (
    BLOCK_POSITIONS,
    CAPACITY,
    WINDOW_DIM,
    NormArguments,
    PredictorArguments,
    SampleArguments,
    TalkerArguments,
    WindowArguments,
    norm_launch,
    predictor_launch,
    sample_launch,
    supports_attention,
    talker_launch,
    window_launch,
)
from oscine.kernels.cuda.linear import (
    Epilogue,
    Few,
    LinearArguments,
    Plan,
    Product,
    choose_plan,
    linear_launch,
    reads_tiles,
)
from oscine.kernels.cuda.program import Launch, Program, TileArguments, tile_launch, tile_shape, tiles_of
from oscine.kernels.operations import Following, Fp8Weight, Weight, quantize
from oscine.kernels.sample import Draws, FirstCode

_ALIGNMENT = 16  # bytes


class CudaOperations:
    """`normed` is a buffer for the largest x of `norm_linear`, and for one that `linear` copies into tiles. `fp8`: the
    weights of layers become FP8."""

    def __init__(
        self, normed: Tensor, cubins: CubinCache | None = None, *, fp8: bool = False, programmatic: bool = True
    ) -> None:
        self._normed = normed
        self._cubins = cubins or default_cache()
        self._kernels: dict[Program, Kernel] = {}
        self._fp8 = fp8
        self._programmatic = programmatic

    def product_input(self, buffer: Tensor, rows: int, width: int) -> Tensor:
        if reads_tiles(rows):
            return tiles_of(buffer, rows, width)
        return buffer.flatten()[: rows * width].view(rows, width)

    def prepare(self, weight: Tensor) -> Weight:
        return quantize(weight) if self._fp8 else weight

    def linear(
        self,
        x: Tensor,
        weight: Weight,
        out: Tensor,
        *,
        residual: Tensor | None = None,
        bias: Tensor | None = None,
        glu: bool = False,
        plan: Plan | None = None,
    ) -> None:
        rows = len(x) if x.ndim == 2 else len(out)
        if x.ndim == 2 and reads_tiles(rows):
            x = self._in_tiles(x)
        self._product(x, weight, out, rows, residual=residual, bias=bias, glu=glu, plan=plan)

    def _in_tiles(self, x: Tensor) -> Tensor:
        rows, width = x.shape
        tiles = tiles_of(self._normed, rows, width)
        _check(x, tiles)
        arguments = TileArguments(x.data_ptr(), tiles.data_ptr(), rows, x.stride(0), tiles.stride(0))
        self.launch(tile_launch(width, rows), arguments, x.device)
        return tiles

    def norm(self, x: Tensor, scale: Tensor, eps: float, out: Tensor) -> None:
        """`out` is [rows, width], or in tiles."""
        rows, width = x.shape
        assert _holds(out, rows, width) and scale.shape == (width,), (x.shape, out.shape, scale.shape)
        _check(x, scale, out)
        arguments = NormArguments(
            x=x.data_ptr(), scale=scale.data_ptr(), out=out.data_ptr(), rows=rows,
            x_stride=x.stride(0), out_stride=out.stride(0), epsilon=eps,
        )  # fmt: skip
        self.launch(norm_launch(width, rows, tiles=out.ndim == 3), arguments, x.device)

    def norm_linear(
        self,
        x: Tensor,
        scale: Tensor,
        eps: float,
        weight: Weight,
        out: Tensor,
        *,
        glu: bool = False,
        plan: Plan | None = None,
    ) -> None:
        plan = plan or self.plan(_product_of(weight, Epilogue.GLU if glu else Epilogue.PLAIN), len(x))
        if isinstance(plan, Few):
            self._product(x, weight, out, len(x), glu=glu, scale=scale, eps=eps, plan=plan)
        else:  # otherwise every block would norm the rows again
            normed = tiles_of(self._normed, *x.shape)
            self.norm(x, scale, eps, normed)
            self._product(normed, weight, out, len(x), glu=glu, plan=plan)

    def talker_attention(self, qkv: Tensor, norms: QkvNorms, cache: PagedCache, slot: Tensor, out: Tensor) -> None:
        (q_norm, k_norm, eps, cos, sin), (key_blocks, value_blocks, block_table, position) = norms, cache
        _, kv_heads, block_size, dim = key_blocks.shape
        heads = _check_heads(qkv, kv_heads, dim, cos, sin, out)
        assert block_size == BLOCK_POSITIONS, block_size
        assert key_blocks.stride() == value_blocks.stride() and key_blocks.stride()[2:] == (dim, 1), key_blocks.stride()
        _check(qkv, q_norm, k_norm, key_blocks, value_blocks, out)
        for index in (block_table, position, slot):
            assert index.dtype == torch.int64 and index.stride(-1) == 1, (index.dtype, index.stride())
        assert slot.shape == (len(qkv),), (slot.shape, qkv.shape)
        tensors = (qkv, q_norm, k_norm, cos, sin, key_blocks, value_blocks, block_table, position, slot, out)
        arguments = TalkerArguments(
            *(tensor.data_ptr() for tensor in tensors),
            qkv.stride(0), out.stride(0), key_blocks.stride(0), key_blocks.stride(1), block_table.stride(0),
            eps, dim**-0.5,
        )  # fmt: skip
        launch = talker_launch(heads, kv_heads, len(qkv), tiles=out.ndim == 3)
        self.launch(launch, arguments, qkv.device)

    def predictor_attention(
        self, qkv: Tensor, norms: QkvNorms, keys: Tensor, values: Tensor, position: int, out: Tensor, *, new: int = 1
    ) -> None:
        q_norm, k_norm, eps, cos, sin = norms
        _, kv_heads, capacity, dim = keys.shape
        heads = _check_heads(qkv, kv_heads, dim, cos, sin, out)
        sequences = len(qkv) // new
        assert capacity == CAPACITY and 0 <= position <= capacity - new, (capacity, position, new)
        assert sequences * new == len(qkv) and len(keys) >= sequences, (qkv.shape, new, keys.shape)
        assert keys.stride() == values.stride() and keys.stride()[2:] == (dim, 1), (keys.stride(), values.stride())
        _check(qkv, q_norm, k_norm, keys, values, out)
        tensors = (qkv, q_norm, k_norm, cos, sin, keys, values, out)
        arguments = PredictorArguments(
            *(tensor.data_ptr() for tensor in tensors),
            position, qkv.stride(0), out.stride(0), keys.stride(0), keys.stride(1), eps, dim**-0.5,
        )  # fmt: skip
        launch = predictor_launch(heads, kv_heads, sequences, new, tiles=out.ndim == 3)
        self.launch(launch, arguments, qkv.device)

    def window_attention(
        self, qkv: Tensor, cos: Tensor, sin: Tensor, rows: Rows, keys: Tensor, values: Tensor, out: Tensor
    ) -> None:
        """Computes attention of the codec's stack: one new frame per row, over the last frames of its slot. cos, sin
        [rows, dim / 2]; keys (already rotated) and values [slots, heads, window, dim]. `out` is a `product_input`."""
        _, heads, window, dim = keys.shape
        assert dim == WINDOW_DIM and qkv.shape == (len(rows), 3 * heads * dim), (keys.shape, qkv.shape)
        assert _holds(out, len(rows), heads * dim) and values.shape == keys.shape, (out.shape, values.shape)
        assert keys.is_contiguous() and values.is_contiguous(), (keys.stride(), values.stride())
        assert cos.shape == sin.shape == (len(rows), dim // 2), (cos.shape, sin.shape)
        assert cos.is_contiguous() and sin.is_contiguous(), (cos.stride(), sin.stride())
        _check(cos, sin, dtype=torch.float32)
        _check_packed(torch.int32, rows.slot, rows.position)
        _check(qkv, keys, values, out)
        tensors = (qkv, cos, sin, rows.slot, rows.position, keys, values, out)
        arguments = WindowArguments(
            *(tensor.data_ptr() for tensor in tensors), qkv.stride(0), out.stride(0), keys.stride(0), dim**-0.5
        )
        self.launch(window_launch(heads, window, len(rows), tiles=out.ndim == 3), arguments, qkv.device)

    def sample(
        self,
        logits: Tensor,
        slots: Tensor,
        draws: Draws,
        codes: Tensor,
        book: int,
        failed: Tensor,
        following: Following | None,
        *,
        first: FirstCode | None = None,
    ) -> None:
        rows, ids = logits.shape
        assert slots.shape == failed.shape == (rows,) and len(codes) >= rows, (slots.shape, failed.shape, codes.shape)
        assert 0 <= book < codes.shape[1] and codes.dtype == torch.int64, (book, codes.dtype)
        assert (book == 0) == (first is not None) and failed.dtype == torch.int16, (book, failed.dtype)
        floats = (draws.temperature, draws.tail)
        ints = (draws.top_k, draws.greedy, draws.seed_low, draws.seed_high, draws.frame)
        _check_packed(torch.float32, *floats)
        _check_packed(torch.int64, *ints, slots)
        _check(logits)
        tensors = (logits, slots, codes[:, book:], failed, *floats, *ints)
        arguments = SampleArguments(
            *(tensor.data_ptr() for tensor in tensors),
            book=book, logits_stride=logits.stride(0), code_stride=codes.stride(0),
        )  # fmt: skip
        if first is not None:
            _set_rules(arguments, first, ids)
        widths = (0, 0) if following is None else _set_following(arguments, following, ids)
        self.launch(sample_launch(ids, *widths, rows, first=first is not None), arguments, logits.device)

    def _product(
        self,
        x: Tensor,
        weight: Weight,
        out: Tensor,
        rows: int,
        *,
        residual: Tensor | None = None,
        bias: Tensor | None = None,
        glu: bool = False,
        scale: Tensor | None = None,
        eps: float = 0.0,
        plan: Plan | None = None,
    ) -> None:
        assert (residual is not None) + (bias is not None) + glu <= 1, "one epilogue"
        assert residual is None or residual.shape == out.shape, (residual is None, out.shape)
        assert x.data_ptr() != out.data_ptr(), "the output must not overwrite the input"
        values, weight_scale = (weight.values, weight.scale) if isinstance(weight, Fp8Weight) else (weight, None)
        extra = [tensor for tensor in (residual, bias, scale) if tensor is not None]
        _check(x, out, *extra)
        _check(values, dtype=torch.bfloat16 if weight_scale is None else torch.float8_e4m3fn)
        epilogue = Epilogue.PLAIN
        if glu:
            epilogue = Epilogue.GLU
        elif residual is not None:
            epilogue = Epilogue.RESIDUAL
        elif bias is not None:
            epilogue = Epilogue.BIAS
        product = _product_of(weight, epilogue, norm=scale is not None)
        assert _holds(x, rows, product.inputs) and _holds(out, rows, product.outputs), (x.shape, product, out.shape)
        assert (x.ndim == 3) == reads_tiles(rows) and (out.ndim == 3) == (glu and reads_tiles(rows)), (
            x.shape,
            out.shape,
        )
        arguments = LinearArguments(
            x=x.data_ptr(), weight=values.data_ptr(), out=out.data_ptr(), residual=_address(residual),
            bias=_address(bias), scale=_address(scale), weight_scale=_address(weight_scale),
            rows=rows, outputs=product.outputs, x_stride=x.stride(0),
            out_stride=out.stride(0), residual_stride=residual.stride(0) if residual is not None else 0, epsilon=eps,
        )  # fmt: skip
        self.launch(linear_launch(product, rows, plan or self.plan(product, rows)), arguments, x.device)

    def plan(self, product: Product, rows: int) -> Plan:
        return choose_plan(product, rows)

    def launch(self, launch: Launch, arguments: ctypes.Structure, device: torch.device) -> None:
        kernel = self._kernels.get(launch.program)
        if kernel is None:
            kernel = Kernel(self._cubins.cubin(launch.program), launch.program.name)
            self._kernels[launch.program] = kernel
        if not self._programmatic:
            launch = Launch(launch.program, launch.grid, launch.threads, launch.shared_bytes, launch.cluster, False)
        kernel.launch(launch, arguments, torch.cuda.current_stream(device).cuda_stream)


def _product_of(weight: Weight, epilogue: Epilogue, *, norm: bool = False) -> Product:
    rows, inputs = weight.shape
    outputs = rows // 2 if epilogue == Epilogue.GLU else rows
    return Product(outputs, inputs, epilogue, norm, fp8=isinstance(weight, Fp8Weight))


def _set_rules(arguments: SampleArguments, first: FirstCode, ids: int) -> None:
    _check_packed(torch.float32, first.penalty)
    _check_packed(torch.int64, first.hold_eos)
    _check_packed(torch.bool, first.seen)
    assert first.seen.shape[1] == ids and first.seen.data_ptr() % 8 == 0, first.seen.shape
    assert first.eos < ids and first.codes <= ids, (first.eos, first.codes, ids)
    arguments.penalty, arguments.hold_eos = first.penalty.data_ptr(), first.hold_eos.data_ptr()
    arguments.seen, arguments.seen_stride = first.seen.data_ptr(), first.seen.stride(0)
    arguments.code_count, arguments.eos, arguments.min_frames = first.codes, first.eos, first.min_frames


def _set_following(arguments: SampleArguments, following: Following, ids: int) -> tuple[int, int]:
    """Returns the widths of both tables."""
    inputs, first_qkv, x, qkv = following.inputs, following.first_qkv, following.x, following.qkv
    _check_table(inputs, x, ids)
    arguments.inputs, arguments.next_x, arguments.x_stride = inputs.data_ptr(), x.data_ptr(), x.stride(0)
    if first_qkv is None or qkv is None:
        return x.shape[1], 0
    _check_table(first_qkv, qkv, ids)
    arguments.first_qkv, arguments.next_qkv, arguments.qkv_stride = first_qkv.data_ptr(), qkv.data_ptr(), qkv.stride(0)
    return x.shape[1], qkv.shape[1]


def _check_table(table: Tensor, out: Tensor, ids: int) -> None:
    assert table.shape == (ids, out.shape[1]) and table.is_contiguous(), (table.shape, out.shape, ids)
    _check(table, out)


def _check_packed(dtype: torch.dtype, *tensors: Tensor) -> None:
    assert all(tensor.dtype == dtype and tensor.is_contiguous() for tensor in tensors), (dtype, tensors)


def _holds(tensor: Tensor, rows: int, width: int) -> bool:
    """Whether it is [rows, width], or these in tiles."""
    return tensor.shape == (tile_shape(rows, width) if tensor.ndim == 3 else (rows, width))


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _check(*tensors: Tensor, dtype: torch.dtype = torch.bfloat16) -> None:
    """Checks that rows are packed and start at multiples of 16 bytes."""
    for tensor in tensors:
        assert tensor.dtype == dtype and tensor.stride(-1) == 1, (tensor.dtype, tensor.stride())
        row_bytes = [step * tensor.element_size() for step in tensor.stride()[:-1]]
        assert tensor.data_ptr() % _ALIGNMENT == 0 and all(count % _ALIGNMENT == 0 for count in row_bytes), row_bytes


def _check_heads(qkv: Tensor, kv_heads: int, dim: int, cos: Tensor, sin: Tensor, out: Tensor) -> int:
    """Returns the number of query heads."""
    heads = qkv.shape[1] // dim - 2 * kv_heads
    assert supports_attention(heads, kv_heads, dim) and (heads + 2 * kv_heads) * dim == qkv.shape[1], (heads, dim)
    assert _holds(out, len(qkv), heads * dim), (out.shape, qkv.shape)
    assert cos.shape == sin.shape and cos.shape[1] == dim // 2 and cos.dtype == sin.dtype == torch.float32, cos.shape
    for angles in (cos, sin):
        assert angles.is_contiguous() and angles.data_ptr() % _ALIGNMENT == 0, (angles.stride(), angles.data_ptr())
    return heads
