"""Stages of a text's preparation, one after the other: each reads what the stage before it says.

What the user wrote is kept through all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from oscine.text.scanner import Piece
from oscine.text.spoken_text import SpokenBuffer


class Stage(Protocol):
    @property
    def held(self) -> str:
        """The text that was not returned yet."""

    def push(self, text: str) -> Iterable[Piece]: ...

    def finish(self, following: str = "") -> Iterable[Piece]:
        """The rest: the text so far is complete. `following`: text that comes after it, but is not read again."""


class _Link:
    """A stage with the written form of what it holds."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._buffer = SpokenBuffer()

    def feed(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        for piece in pieces:
            if piece.pause_s or piece.is_final:
                yield from self.finish(piece.said)
                yield piece
            else:
                self._buffer.push(piece.said, None if piece.spoken is None else piece.written)
                yield from self._with_written(self.stage.push(piece.said))

    def finish(self, following: str = "") -> Iterator[Piece]:
        yield from self._with_written(self.stage.finish(following))
        rest = self._buffer.take_rest()
        if rest.written:
            yield Piece(rest.written, rest.spoken)

    def _with_written(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        for piece in pieces:
            runs = self._buffer.take_runs(len(piece.written))
            if piece.spoken is not None:
                written = "".join(run if original is None else original for run, original in runs)
                yield Piece(written, piece.spoken, piece.pause_s, piece.is_final)
                continue
            for run, original in runs:
                yield Piece(run) if original is None else Piece(original, run)


class Chain:
    def __init__(self, stages: Sequence[Stage]) -> None:
        self._links = [_Link(stage) for stage in stages]

    @property
    def held(self) -> str:
        """The text that was not returned yet, as far as it was prepared."""
        return "".join(link.stage.held for link in reversed(self._links))

    def push(self, text: str) -> Iterable[Piece]:
        pieces: Iterable[Piece] = [Piece(text)]
        for link in self._links:
            pieces = link.feed(pieces)
        return pieces

    def finish(self) -> Iterator[Piece]:
        for index, link in enumerate(self._links):
            pieces: Iterable[Piece] = link.finish()
            for later in self._links[index + 1 :]:
                pieces = later.feed(pieces)
            yield from pieces
