"""Stages of a text's preparation, one after the other: each reads what the stage before it says.

What the user wrote is kept through all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from oscine.errors import RequestError
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
        self._buffer = SpokenBuffer()  # empty if everything that the stage holds is the user's own text

    def feed(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Joins pieces first: a stage's work per push then does not count for each piece."""
        waiting: list[Piece] = []
        failure: RequestError | None = None
        try:
            for piece in pieces:
                if not (piece.pause_s or piece.is_final):
                    waiting.append(piece)
                    continue
                yield from self._push(waiting)
                waiting = []
                yield from self.finish(piece.said)
                yield piece
        except RequestError as error:
            failure = error
        yield from self._push(waiting)
        if failure is not None:
            raise failure

    def _push(self, pieces: list[Piece]) -> Iterable[Piece]:
        if not pieces:
            return ()
        buffer, text = self._buffer, "".join([piece[0] if piece[1] is None else piece[1] for piece in pieces])
        is_changed = any(piece[1] is not None for piece in pieces)
        if buffer.is_unchanged:
            buffer.clear()
            if is_changed:
                buffer.push(self.stage.held)
        if is_changed or not buffer.is_empty:
            buffer.extend(
                [(said, None) if spoken is None else (spoken, said) for said, spoken, _, _ in pieces if said or spoken]
            )
        return self._with_written(self.stage.push(text))

    def finish(self, following: str = "") -> Iterator[Piece]:
        yield from self._with_written(self.stage.finish(following))
        rest = self._buffer.take_rest()
        if rest.written:
            yield Piece(rest.written, rest.spoken)

    def _with_written(self, pieces: Iterable[Piece]) -> Iterable[Piece]:
        return pieces if self._buffer.is_empty else self._rewritten(pieces)

    def _rewritten(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        take_runs = self._buffer.take_runs
        for piece in pieces:
            runs = take_runs(len(piece[0]))
            if piece[1] is None:
                yield from [
                    _new(Piece, (run, None, 0.0, False) if original is None else (original, run, 0.0, False))
                    for run, original in runs
                ]
            elif len(runs) == 1 and runs[0][1] is None:
                yield piece
            else:
                written = "".join([run if original is None else original for run, original in runs])
                yield Piece(written, piece.spoken, piece.pause_s, piece.is_final)


_new = tuple.__new__  # twice as quick as the constructor of a named tuple


class Chain:
    def __init__(self, stages: Sequence[Stage]) -> None:
        self._first = stages[0]
        self._links = [_Link(stage) for stage in stages[1:]]

    @property
    def held(self) -> str:
        """The text that was not returned yet, as far as it was prepared."""
        return "".join([*(link.stage.held for link in reversed(self._links)), self._first.held])

    @property
    def held_first(self) -> str:
        """The text that the first stage holds, as it was written."""
        return self._first.held

    def push(self, text: str) -> Iterable[Piece]:
        """Raises what a stage raises, after the pieces before it."""
        return self._through(self._first.push(text), self._links)

    def finish(self) -> Iterator[Piece]:
        yield from self._through(self._first.finish(), self._links)
        for index, link in enumerate(self._links):
            yield from self._through(link.finish(), self._links[index + 1 :])

    @staticmethod
    def _through(pieces: Iterable[Piece], links: Sequence[_Link]) -> Iterable[Piece]:
        for link in links:
            pieces = link.feed(pieces)
        return pieces
