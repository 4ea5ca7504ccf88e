"""A kernel with its constants, and how it is launched."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Program:
    """`name` is the kernel and its file, without the suffix; `defines` are its constants, sorted by name."""

    name: str
    defines: tuple[tuple[str, int], ...]

    @staticmethod
    def of(name: str, **defines: int) -> Program:
        return Program(name, tuple(sorted(defines.items())))

    @property
    def text(self) -> str:
        return _text(f"{self.name}.cu")


@dataclass(frozen=True, slots=True)
class Launch:
    """`cluster` adjacent blocks share their memory. A programmatic launch may begin before its predecessor ends."""

    program: Program
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int = 0
    cluster: int = 1
    programmatic: bool = True


@cache
def _text(file: str) -> str:
    """A file with its includes in place, each once, so that a compiler needs no other file."""
    seen: set[str] = set()

    def lines(name: str) -> list[str]:
        if name in seen:
            return []
        seen.add(name)
        found = []
        for line in (SOURCES / name).read_text(encoding="utf-8").splitlines():
            included = line.startswith('#include "')
            found += lines(line.split('"')[1]) if included else [line]
        return found

    return "\n".join(lines(file)) + "\n"
