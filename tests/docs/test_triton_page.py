"""docs/deploy/triton.md lists the inputs and outputs that the models really have."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from oscine.deploy.tritonserver.tensors import SPEECH_INPUTS, SPEECH_OUTPUTS, TensorSpec

PAGE = Path(__file__).parents[2] / "docs" / "deploy" / "triton.md"


def listed(heading: str) -> list[tuple[str, str, str]]:
    """Name, type and meaning of each row of the table with this heading."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(f"| {heading} | type | |\n")
    table, _, _ = rest.partition("\n\n")
    return re.findall(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", table, re.MULTILINE)


def expected(specs: Iterable[TensorSpec]) -> list[tuple[str, str, str]]:
    return [(spec.name, spec.datatype + ("" if spec.dims == (1,) else " [-1]"), spec.about) for spec in specs]


def test_the_page_lists_every_input() -> None:
    assert listed("input") == expected(SPEECH_INPUTS)


def test_the_page_lists_every_output() -> None:
    assert listed("output") == expected(SPEECH_OUTPUTS)
