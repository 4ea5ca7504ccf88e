"""Tests use the public names of a module: how it works inside may then change without them."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
DEFINED = re.compile(r"(?:\bdef |\bclass |\bself\.|^)(_[a-zA-Z]\w*)", re.MULTILINE)
# Attributes of other objects, imports, and the strings by which tests replace attributes.
USED = re.compile(
    r"(?<!\bself)(?<!\bcls)(?<!\s)\.(_[a-zA-Z]\w*)|\bimport\b.*\b(_[a-zA-Z]\w*)|^    (_[a-zA-Z]\w*),$"
    r"|[\"'](?:[\w.]+\.)?(_[a-zA-Z]\w*)[\"']",
    re.MULTILINE,
)
MAX_USES = 32  # 30 in 2026-11, names of kernels and metrics among them; lower it as they go


def sources(*folders: str) -> list[str]:
    files = [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]
    return [file.read_text(encoding="utf-8") for file in files]


def test_private_names_of_other_modules_are_used_ever_less() -> None:
    ours = {name for text in sources("src", "benchmarks", "tools", "training") for name in DEFINED.findall(text)}
    uses = []
    for text in sources("tests"):
        own = set(DEFINED.findall(text))
        uses += [name for found in USED.findall(text) for name in found if name in ours and name not in own]
    assert len(uses) <= MAX_USES, f"use public names: {sorted(uses)}"
