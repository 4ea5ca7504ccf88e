"""Makes Triton's interpreter quicker without changing a result, and lets it run with newer versions of NumPy."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import triton
from triton import language as tl
from triton.runtime import interpreter


def prepare_interpreter() -> None:
    if triton.__version__.startswith("3.6."):
        _teach_numpy()
    _patch_once_per_function()
    _look_up_types()
    _look_up_shapes()
    _shift_bfloat16()
    # Whether a sum overflows is worked out for an assertion that only the option `debug` has: 40 % of a test's time.
    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    builder.options = replace(builder.options, sanitize_overflow=False)


def _teach_numpy() -> None:
    """Triton 3.6 (not 3.7) converts loop bounds by int(array), which numpy 2.4 refuses for arrays of one element."""
    patch = interpreter._patch_lang_tensor

    def patch_with_item(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch_with_item


def _patch_once_per_function() -> None:
    """The interpreter patches Triton's language again in every call of a device function, which is a third of its time.
    A kernel's launch patches and restores the language itself, so once per function is enough."""
    patched = set()

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        if function.fn not in patched:
            interpreter._patch_lang(function.fn)
            patched.add(function.fn)
        return function.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call


def _look_up_types() -> None:
    """The interpreter makes a dictionary of all types again for each value."""
    find, known = interpreter._get_np_dtype, dict[str, np.dtype]()

    def numpy_type(of: Any) -> np.dtype:
        element = of.element_ty if isinstance(of, tl.block_type) else of
        if isinstance(element, tl.pointer_type):
            return np.dtype(np.uint64)
        if element.name not in known:
            known[element.name] = find(element)
        return known[element.name]

    interpreter._get_np_dtype = numpy_type


def _look_up_shapes() -> None:
    """The interpreter makes the shape of each value anew, out of an object for each dimension and for its type."""
    known = dict[tuple[int, ...], tuple[tl.constexpr, tl.tuple]]()
    shapes = dict[tuple[int, ...], tl.tuple]()
    block_init, equal = tl.block_type.__init__, tl.block_type.__eq__

    def init(self: tl.tensor, handle: Any, of: tl.dtype) -> None:
        sizes = tuple(of.shape) if of.is_block() else ()
        if sizes not in known:
            known[sizes] = tl.constexpr(math.prod(sizes)), tl.tuple([tl.constexpr(size) for size in sizes])
        self.handle, self.type, self.dtype = handle, of, of.scalar
        self.numel, self.shape = known[sizes]

    def init_block(self: tl.block_type, element_ty: tl.dtype, shape: Any) -> None:
        sizes = tuple(size.value if isinstance(size, tl.constexpr) else size for size in shape)
        if sizes not in shapes:
            block_init(self, element_ty, shape)
            shapes[sizes] = self.shape, self.numel
        self.element_ty, (self.shape, self.numel) = element_ty, shapes[sizes]
        self.name = f"<{sizes}, {element_ty}>"

    def same_shape(self: tl.block_type, other: Any) -> bool:
        if isinstance(other, tl.block_type) and self.shape is other.shape:
            return self.element_ty == other.element_ty
        return equal(self, other)

    tl.tensor.__init__, tl.block_type.__init__, tl.block_type.__eq__ = init, init_block, same_shape


def widened(bits: np.ndarray) -> np.ndarray:
    """The bits of bf16 values in fp32, of which bf16 is the upper half."""
    return np.asarray(bits.view(np.uint16).astype(np.uint32) << 16)


def cut_off(values: np.ndarray) -> np.ndarray:
    """The bits of fp32 values in bf16, without rounding."""
    return np.asarray((values.view(np.uint32) >> 16).astype(np.uint16))


def _shift_bfloat16() -> None:
    """The interpreter takes sign, exponent and significand of bf16 apart, as of any format."""
    convert = interpreter._convert_float

    def quickly(values: np.ndarray, of: tl.dtype, to: tl.dtype, rounding: Any) -> np.ndarray:
        if rounding is None and (of, to) == (tl.bfloat16, tl.float32):
            return widened(values)
        if rounding is None and (of, to) == (tl.float32, tl.bfloat16):
            return cut_off(values)
        return convert(values, of, to, rounding)

    interpreter._convert_float = quickly
