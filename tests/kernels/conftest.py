"""Kernels run on a GPU if there is one, else in Triton's interpreter (tests/conftest.py)."""

import importlib.util
import os

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton"):
    from tests.kernels.interpreter import prepare_interpreter

    prepare_interpreter()


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
