"""Rebuilds Qwen's vocab.json and merges.txt from the rank file qwen.tiktoken that the dashscope package carries.

Run: python tests/oracle/vocabulary.py SITE_PACKAGES OUT
"""

import base64
import itertools
import json
import os
import sys
import tempfile
from pathlib import Path

RANK_FILE = "dashscope/resources/qwen.tiktoken"


def read_ranks(path: Path) -> dict[bytes, int]:
    lines = path.read_bytes().split(b"\n")
    pairs = (line.split() for line in lines if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def merge_of(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The two earlier tokens that merge to this one: its bytes, merged with all older tokens."""
    rank = ranks[token]
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pair_ranks = [ranks.get(left + right, rank) for left, right in itertools.pairwise(parts)]
        at = min(range(len(pair_ranks)), key=pair_ranks.__getitem__)
        assert pair_ranks[at] < rank, f"token {token!r} of rank {rank} cannot be made by merging"
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]


def byte_names() -> dict[int, str]:
    """Byte-level BPE writes each byte as one visible character; invisible ones map to 256 and up, in order."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(256 + place) for place, byte in enumerate(moved)}


def write_vocabulary(rank_file: Path, out: Path) -> None:
    ranks = read_ranks(rank_file)
    # Latin-1 maps byte b to code point b, so one translate call names a whole token.
    names = byte_names()

    def written(token: bytes) -> str:
        return token.decode("latin-1").translate(names)

    ordered = sorted(ranks, key=ranks.__getitem__)
    vocab = {written(token): ranks[token] for token in ordered}
    merges = ["#version: 0.2"]
    for token in ordered:
        if len(token) > 1:
            left, right = merge_of(token, ranks)
            merges.append(f"{written(left)} {written(right)}")
    out.mkdir(parents=True, exist_ok=True)
    (out / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    (out / "merges.txt").write_text("\n".join(merges) + "\n", encoding="utf-8")


def cached_vocabulary(site_packages: Path, out: Path) -> Path:
    """`out`, written atomically on the first call."""
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
            fresh = Path(scratch) / "vocabulary"
            write_vocabulary(site_packages / RANK_FILE, fresh)
            os.replace(fresh, out)
    return out


if __name__ == "__main__":
    print(cached_vocabulary(Path(sys.argv[1]), Path(sys.argv[2])))
