"""Kernels run on a GPU if there is one, else in Triton's interpreter (tests/conftest.py)."""

import importlib.util
import os
from typing import Any

import pytest
import torch


def _teach_the_interpreter_numpy() -> None:
    """Triton 3.6 (not 3.7) converts loop bounds by int(array), which numpy 2.4 refuses for arrays of one element."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_with_item(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch_with_item


if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton"):
    import triton

    if triton.__version__.startswith("3.6."):
        _teach_the_interpreter_numpy()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "kernels" not in item.path.parts:
            continue
        if torch.cuda.is_available():
            item.add_marker("gpu")  # small shapes too: the compiler may refuse code that the interpreter accepts
        elif item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
