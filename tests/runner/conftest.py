"""Selects Triton's interpreter where there is no GPU, before any test of this folder imports Triton."""

from tests.kernels import conftest  # noqa: F401
