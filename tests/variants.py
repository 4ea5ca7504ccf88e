"""Changed checkpoints: folders of links to a complete one, with real files where they differ."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

REMOVED = object()
Tensors = dict[str, torch.Tensor]


def linked(source: Path, out: Path) -> Path:
    """A folder of links, so that any file may be removed or replaced without touching the source."""
    return Path(shutil.copytree(source, out, copy_function=os.symlink))


def replace_file(path: Path, content: bytes | str) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def change_json(path: Path, dotted_key: str, value: Any) -> None:
    """Sets one key ("talker_config.vocab_size"), or removes it (REMOVED)."""
    content = json.loads(path.read_text(encoding="utf-8"))
    *parents, leaf = dotted_key.split(".")
    owner = content
    for parent in parents:
        owner = owner[parent]
    if value is REMOVED:
        del owner[leaf]
    else:
        owner[leaf] = value
    replace_file(path, json.dumps(content))


def change_tensors(path: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(path)
    change(tensors)
    path.unlink()
    save_file(tensors, path, metadata={"format": "pt"})
