"""The files of the demo voice: parameters and fingerprint. Standard library only, because training/evaluate.py runs on
machines without other packages."""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DEMO = Path(__file__).resolve().parent.parent / "src" / "oscine" / "demo"
CARD = "README.md"
_BESIDE_SPEECH = ("instructions.json", "phones.json")  # what the playground offers, and where words are in codes
# How texts are rewritten before the voice reads them; plain prose, which the figures are about, is not.
_OWN_KEY = re.compile(rb'\n *"oscine_\w+": [^\n]*')
_WEIGHTS = ("model.safetensors", "speech_tokenizer/model.safetensors")


def files(folder: Path) -> Iterator[Path]:
    """All files except the card."""
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != CARD)


def fingerprint(folder: Path) -> str:
    """Hash of all files that determine the speech; results name it."""
    whole = hashlib.sha256()
    for path in files(folder):
        if path.name in _BESIDE_SPEECH:
            continue
        content = path.read_bytes()
        if path.name == "config.json":
            content = _OWN_KEY.sub(b"", content)
        whole.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode() + content)
    return whole.hexdigest()[:16]


def parameters(folder: Path) -> dict[str, int]:
    """Parameters by part, from the headers of the safetensors files: eight bytes of length, then JSON."""
    counts = {"talker": 0, "predictor": 0, "codec": 0}
    for name in _WEIGHTS:
        with (folder / name).open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            head: dict[str, Any] = json.loads(file.read(length))
        for tensor, about in head.items():
            if tensor != "__metadata__":
                part = "codec" if "/" in name else "predictor" if "code_predictor" in tensor else "talker"
                counts[part] += math.prod(about["shape"])
    return counts
