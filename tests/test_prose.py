"""Docstrings can be understood at first reading: the first line has a verb or is a noun phrase."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

FOLDERS = ("src", "benchmarks", "tools", "training", "tests")
# "Of one weight." tells what it is about, not what it is.
FRAGMENT = re.compile(
    r"(Of|For|With|As|In|Where|On|By|At|From|Without|Because|If|Until|Beside|Like|After|Only|Which|Who|When)\b|None:"
)
CLIPPED = re.compile(r"(^|[.;`]\s)None: ")  # "None: all." has no verb


def docstrings(file: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            continue
        if text := ast.get_docstring(node):
            yield getattr(node, "lineno", 1), text


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_docstring_begins_with_a_fragment(folder: str) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for file in sorted((ROOT / folder).rglob("*.py"))
        for line, text in docstrings(file)
        if FRAGMENT.match(text)
    ]
    assert not found, "begin with a verb or a noun:\n" + "\n".join(found)


def test_no_docstring_says_what_none_means_without_a_verb() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {text}"
        for file in sorted((ROOT / "src").rglob("*.py"))
        for line, text in docstrings(file)
        if CLIPPED.search(text)
    ]
    assert not found, "say `or None if ...`, or `by default ...`:\n" + "\n".join(found)
