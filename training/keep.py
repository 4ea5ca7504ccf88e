"""Packs weights (without optimizer state) and the vocabulary into files of at most 15 MB, and restores them.

python training/keep.py WORK OUT codec talker     WORK/codec.pt, WORK/talker.pt -> OUT/codec.00, ...
python training/keep.py WORK OUT codec --small    in fp16, without the discriminators
python training/keep.py WORK --restore PARTS      the reverse; training then continues with fresh optimizers
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import Any

import torch
from export import VOCABULARY_FILES
from journal import load, save
from torch import Tensor

_PART_BYTES = 15_000_000
_KEPT = {"codec": ("model", "judges", "sizes"), "talker": ("average", "sizes")}


def kept(stage: str, state: dict[str, Any], *, small: bool) -> dict[str, Any]:
    """The talker's averaged weights in bf16, as exported; the codec unchanged, its discriminators in fp16."""
    chosen = {name: state[name] for name in _KEPT[stage]}
    if stage == "codec":
        chosen["judges"] = {} if small else _halves(state["judges"])
        chosen["model"] = _halves(state["model"]) if small else state["model"]
    if stage == "talker":
        chosen["average"] = {name: value.to(torch.bfloat16) for name, value in state["average"].items()}
    return chosen | {"step": 0, "spent_s": 0.0}


def _halves(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.half() if value.dtype == torch.float32 else value for name, value in tensors.items()}


def write_parts(work: Path, out: Path, stage: str, *, small: bool) -> None:
    state = load(work / f"{stage}.pt", torch.device("cpu"))
    if state is None:
        raise FileNotFoundError(f"{work / stage}.pt is missing")
    whole = io.BytesIO()
    chosen = kept(stage, state, small=small)
    if stage == "talker":  # its text embeddings are those of this vocabulary
        chosen["vocabulary"] = {name: (work / "vocabulary" / name).read_text() for name in VOCABULARY_FILES}
    torch.save(chosen, whole)
    content = whole.getvalue()
    out.mkdir(parents=True, exist_ok=True)
    for number, begin in enumerate(range(0, len(content), _PART_BYTES)):
        (out / f"{stage}.{number:02d}").write_bytes(content[begin : begin + _PART_BYTES])


def restore(work: Path, parts: Path, stage: str) -> bool:
    paths = sorted(parts.glob(f"{stage}.[0-9][0-9]"))
    if not paths:
        return False
    content = b"".join(path.read_bytes() for path in paths)
    state: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    if stage == "talker":
        state["average"] = {name: value.float() for name, value in state["average"].items()}
        state["model"] = state["average"]
        vocabulary = work / "vocabulary"
        vocabulary.mkdir(parents=True, exist_ok=True)
        for name, text in state.pop("vocabulary").items():
            (vocabulary / name).write_text(text)
    work.mkdir(parents=True, exist_ok=True)
    save(work / f"{stage}.pt", state)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("stages", nargs="*", help=f"of {', '.join(_KEPT)}; default: all")
    parser.add_argument("--small", action="store_true", help="the codec in fp16, without its discriminators")
    parser.add_argument("--restore", type=Path)
    options = parser.parse_args()
    if options.restore:
        print("restored:", [stage for stage in _KEPT if restore(options.work, options.restore, stage)])
        return
    for stage in options.stages or _KEPT:
        write_parts(options.work, options.out, stage, small=options.small)


if __name__ == "__main__":
    main()
