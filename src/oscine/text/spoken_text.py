"""Written and spoken form of a text: what the user wrote, and what the model reads instead of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple


class Replacement(NamedTuple):  # not a dataclass: a text may have 100,000 of them
    """Ranges of characters that stand for each other; one of them may be empty."""

    spoken_start: int
    spoken_end: int
    written_start: int
    written_end: int


@dataclass(frozen=True, slots=True)
class SpokenText:
    """A text for the model, with the user's text that it stands for. Outside the replacements both are equal."""

    spoken: str
    written: str
    replacements: tuple[Replacement, ...] = ()  # in order

    @classmethod
    def unchanged(cls, text: str) -> SpokenText:
        return cls(text, text)

    def __add__(self, other: SpokenText) -> SpokenText:
        spoken, written = len(self.spoken), len(self.written)
        moved = (
            Replacement(
                one.spoken_start + spoken,
                one.spoken_end + spoken,
                one.written_start + written,
                one.written_end + written,
            )
            for one in other.replacements
        )
        return SpokenText(self.spoken + other.spoken, self.written + other.written, (*self.replacements, *moved))

    def written_range(self, start: int, end: int) -> tuple[int, int]:
        """The characters of `written` that `spoken[start:end]` stands for. A part of a replacement stands for all of
        it."""
        first = last = 0  # written minus spoken index, after the replacements before `start` and before `end`
        begin = finish = None
        for one in self.replacements:
            shift = one.written_end - one.spoken_end
            if one.spoken_end <= start:
                first = shift
            elif one.spoken_start <= start:
                begin = one.written_start
            if one.spoken_end <= end:
                last = shift
            elif one.spoken_start < end:
                finish = one.written_end
        written_start = start + first if begin is None else begin
        return written_start, max(written_start, end + last if finish is None else finish)


@dataclass(frozen=True, slots=True)
class Pause:
    """Silence of this length in the answer."""

    seconds: float


Run = tuple[str, str | None]  # spoken, written (None: the same)


_MAX_TAKEN = 1024  # runs that were taken and are still in the lists


class SpokenBuffer:
    """A queue of characters for the model that remembers what the user wrote."""

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._ends: list[int] = []  # of each run: spoken characters up to its end
        self._taken_runs = self._taken_chars = self._chars = 0
        self._changed = -1  # index of the last run that is not the user's own text

    def __len__(self) -> int:
        return self._chars - self._taken_chars

    @property
    def is_empty(self) -> bool:
        return self._taken_runs == len(self._runs)

    @property
    def is_unchanged(self) -> bool:
        """Whether everything is the user's own text."""
        return self._changed < self._taken_runs

    @property
    def spoken(self) -> str:
        return "".join([spoken for spoken, _ in self._runs[self._taken_runs :]])

    def push(self, spoken: str, written: str | None = None) -> None:
        """Adds text. `written` is None if it is the user's own text."""
        if spoken or written:
            self.extend([(spoken, written)])

    def extend(self, runs: Iterable[Run]) -> None:
        """Adds runs, none of which is empty."""
        first = len(self._runs)
        self._runs += runs
        for index in range(len(self._runs) - 1, first - 1, -1):
            if self._runs[index][1] is not None:
                self._changed = index
                break
        self._ends += list(accumulate([len(run[0]) for run in self._runs[first:]], initial=self._chars))[1:]
        self._chars = self._ends[-1] if self._ends else 0

    def take(self, chars: int) -> SpokenText:
        """The next characters. A replacement that is cut belongs to the piece that it begins in."""
        return _joined(self.take_runs(chars))

    def take_rest(self) -> SpokenText:
        """Everything, with what was left out at the end."""
        runs = self._runs[self._taken_runs :]
        self.clear()
        return _joined(runs)

    def clear(self) -> None:
        self._runs, self._ends = [], []
        self._taken_runs = self._taken_chars = self._chars = 0
        self._changed = -1

    def take_runs(self, chars: int) -> list[Run]:
        """The next characters as runs that were replaced together, or not at all."""
        if not chars:
            return []
        runs, first, end = self._runs, self._taken_runs, self._taken_chars + chars
        last = bisect_left(self._ends, end, first)
        taken = runs[first:last]
        spoken, written = run = runs[last]
        if (left := self._ends[last] - end) > 0:
            taken.append((spoken[:-left], written))
            runs[last] = spoken[-left:], None if written is None else ""
        else:
            taken.append(run)
            last += 1
        self._taken_runs, self._taken_chars = last, end
        if last > _MAX_TAKEN and 2 * last > len(runs):
            self._forget()
        return taken

    def _forget(self) -> None:
        """Drops the runs that were taken."""
        taken = self._taken_runs
        del self._runs[:taken], self._ends[:taken]
        self._changed, self._taken_runs = max(-1, self._changed - taken), 0


_new = tuple.__new__  # twice as quick as the constructor of a named tuple


def _joined(runs: list[Run]) -> SpokenText:
    spoken = [run for run, _ in runs]
    if all(original is None for _, original in runs):
        return SpokenText.unchanged("".join(spoken))
    written = [run if original is None else original for run, original in runs]
    borders = list(accumulate(map(len, spoken), initial=0))
    written_borders = list(accumulate(map(len, written), initial=0))
    ranges = zip(borders, borders[1:], written_borders, written_borders[1:], strict=False)
    replacements = [_new(Replacement, one) for one, run in zip(ranges, runs, strict=True) if run[1] is not None]
    return SpokenText("".join(spoken), "".join(written), tuple(replacements))
