"""What a file must hold to be read, and what is said where it does not."""

from typing import Any

import pytest

from oscine.bench.shapes import fault_in

SHAPE = {"name": str, "size": (None, int | float), "parts": [{"at": int}]}
WHOLE: dict[str, Any] = {"name": "x", "size": None, "parts": [{"at": 1, "more": "is fine"}]}


def test_what_is_whole_has_no_fault() -> None:
    assert fault_in(WHOLE, SHAPE) is None
    assert fault_in({**WHOLE, "size": 1.5, "other": []}, SHAPE) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": 3}, "name cannot be 3"),
        ({"size": "large"}, "size cannot be 'large'"),
        ({"parts": []}, "parts is empty"),
        ({"parts": {}}, "parts cannot be {}"),
        ({"parts": [{"at": 1}, {}]}, "parts[1] has no 'at'"),
        ({"parts": [{"at": None}]}, "parts[0].at cannot be None"),
    ],
)
def test_the_first_fault_is_told_with_its_place(change: dict[str, Any], said: str) -> None:
    assert fault_in({**WHOLE, **change}, SHAPE) == said


def test_something_else_altogether_is_a_fault() -> None:
    assert fault_in([], SHAPE) == "it cannot be []"
    assert fault_in({}, SHAPE) == "it has no 'name'"
