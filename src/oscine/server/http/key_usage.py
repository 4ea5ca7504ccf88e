"""What each API key uses: within the last minute, and by month, which a file keeps over restarts."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import BaseModel, Field

from oscine.errors import ConfigError, OscineError, OverloadedError, TooLargeError
from oscine.server.http.key_file import FileVersion, KeyLimits, LimitName, locked, read_file, replace_file, version_of

_log = logging.getLogger(__name__)

Unit = Literal["requests", "characters", "audio_ms"]
_UNITS: tuple[Unit, ...] = get_args(Unit)
_LIMITED: tuple[tuple[LimitName, Unit], ...] = (
    ("requests_per_month", "requests"),
    ("characters_per_month", "characters"),
    ("requests_per_minute", "requests"),
    ("characters_per_minute", "characters"),
)
QUOTA_USED = "insufficient_quota"  # the code of a refusal for the rest of the month, as OpenAI has it
_MINUTE_S = 60
_DAY_S = 86_400
_EARLIER_MONTHS = 2  # that are kept
LOCK_WAIT_S = 2.0  # of a server; its end may wait for twice as long


class Entry(NamedTuple):
    key: str
    month: str  # such as 2026-11, of UTC
    unit: Unit


class MinuteWindow:
    """What was counted within the last minute, by the second."""

    def __init__(self) -> None:
        self.seconds: deque[list[int]] = deque()  # [second, amount], oldest first; at most 60
        self._total = 0

    def add(self, amount: int, now_s: float) -> None:
        self.total(now_s)  # drops the seconds that have left the window
        if not self.seconds or self.seconds[-1][0] != int(now_s):
            self.seconds.append([int(now_s), 0])
        self.seconds[-1][1] += amount
        self._total += amount

    def remove(self, counted: MinuteWindow) -> None:
        """Takes back what was counted in the same seconds, as far as it is still in the window."""
        buckets = {bucket[0]: bucket for bucket in self.seconds}
        for second, amount in counted.seconds:
            if bucket := buckets.get(second):
                taken = min(bucket[1], amount)
                bucket[1] -= taken
                self._total -= taken

    def total(self, now_s: float) -> int:
        # A second that is still to come: the clock was set back.
        while self.seconds and not 0 <= int(now_s) - self.seconds[0][0] < _MINUTE_S:
            self._total -= self.seconds.popleft()[1]
        return self._total

    def wait_s(self, most: int, now_s: float) -> float:
        """Seconds until no more than `most` are counted."""
        total, wait_s = self.total(now_s), 0.0
        for second, amount in self.seconds:
            if total <= most:
                break
            total, wait_s = total - amount, second + _MINUTE_S - now_s
        return wait_s


class Counted:
    """What was counted for one speech, so that it can be taken back."""

    def __init__(self) -> None:
        self.months: Counter[Entry] = Counter()
        self.minute: defaultdict[Unit, MinuteWindow] = defaultdict(MinuteWindow)


class KeyUsage:
    """Counts on the event loop, and is saved on a thread. The file has the sum of all servers that share it."""

    def __init__(self, file: Path | None, clock: Callable[[], float] = time.time) -> None:
        """`clock` tells Unix seconds. Raises ConfigError for a file that cannot be used: all would begin at zero."""
        self._file, self.clock = file, clock
        self._lock = threading.Lock()
        self._day, self._month = -1, ""
        self._windows: defaultdict[tuple[str, Unit], MinuteWindow] = defaultdict(MinuteWindow)
        self._saved = (_read(file) if file else None) or Counter[Entry]()
        self._version = version_of(file) if file else None
        self._unsaved: Counter[Entry] = Counter()
        self.spoken: Counter[tuple[str, Unit]] = Counter()  # of speeches that have ended, since the start
        self.refused: Counter[tuple[str, str]] = Counter()  # likewise
        self.is_saved = True  # whether the file could be written the last time

    @property
    def month(self) -> str:
        """The current one, found once a day: that takes longer than counting."""
        day = int(self.clock() // _DAY_S)
        if day != self._day:
            self._month = f"{datetime.fromtimestamp(day * _DAY_S, UTC):%Y-%m}"  # first: another thread may ask
            self._day = day
        return self._month

    @property
    def next_month_s(self) -> int:
        """Unix seconds at which the monthly limits begin again."""
        first = datetime.fromisoformat(f"{self.month}-01T00:00:00Z")
        return int((first + timedelta(days=32)).replace(day=1).timestamp())

    @property
    def earlier_months(self) -> list[str]:
        """The newest first."""
        months, first = [], datetime.fromisoformat(f"{self.month}-01")
        for _ in range(_EARLIER_MONTHS):
            first = (first - timedelta(days=1)).replace(day=1)
            months.append(f"{first:%Y-%m}")
        return months

    def of_month(self, key: str, month: str, unit: Unit) -> int:
        entry = Entry(key, month, unit)
        with self._lock:
            return self._saved[entry] + self._unsaved[entry]

    def of_minute(self, key: str, unit: Unit) -> int:
        with self._lock:
            return self._windows[key, unit].total(self.clock())

    def count(self, key: str, limits: KeyLimits, amounts: dict[Unit, int], counted: Counted) -> None:
        """Counts all of the amounts, or none, and adds them to `counted`. Raises OverloadedError, or TooLargeError for
        a text that could never be spoken."""
        now_s, month = self.clock(), self.month
        for limit, unit in _LIMITED:
            most, amount = getattr(limits, limit), amounts.get(unit, 0)
            if most is None or not amount:
                continue
            per_minute = limit.endswith("minute")
            used = self.of_minute(key, unit) if per_minute else self.of_month(key, month, unit)
            if used + amount > most:
                wait_s = self.next_month_s - now_s
                if per_minute:
                    with self._lock:
                        wait_s = self._windows[key, unit].wait_s(most - amount, now_s)
                error = _refusal(limit, most, used, amount, wait_s)
                error.key_limit = limit
                raise error
        with self._lock:
            for unit, amount in amounts.items():
                entry = Entry(key, month, unit)
                self._windows[key, unit].add(amount, now_s)
                self._unsaved[entry] += amount
                counted.minute[unit].add(amount, now_s)
                counted.months[entry] += amount

    def settle(self, key: str, counted: Counted, audio_ms: int) -> None:
        """A speech has ended."""
        with self._lock:
            self._unsaved[Entry(key, self.month, "audio_ms")] += audio_ms
            self.spoken[key, "audio_ms"] += audio_ms
            for entry, amount in counted.months.items():
                self.spoken[key, entry.unit] += amount

    def refuse(self, key: str, error: BaseException) -> None:
        """Called when the client gets this error; what is tried again is not refused. Counts it if it is about a limit
        of the key."""
        if key and isinstance(error, OscineError) and error.key_limit:
            self.refused[key, error.key_limit] += 1

    def refund(self, key: str, counted: Counted) -> None:
        """Takes back what `count` has added."""
        with self._lock:
            for entry, amount in counted.months.items():
                self._unsaved[entry] -= amount
            for unit, minute in counted.minute.items():
                self._windows[key, unit].remove(minute)

    def save(self) -> None:
        """Adds what is new to the file, and takes over what other servers have added. Waits for the disk."""
        if self._file is None:
            return
        with self._lock:
            added = Counter({entry: amount for entry, amount in self._unsaved.items() if amount})
        if not added and version_of(self._file) == self._version:
            return
        try:
            saved, self._version = self._merged(self._file, added)
        except ConfigError as error:
            if self.is_saved:
                _log.warning("the usage of API keys is not saved: %s", error)
            self.is_saved = False
            return
        self.is_saved = True
        with self._lock:
            self._saved = saved
            self._unsaved.subtract(added)
            self._unsaved = Counter({entry: amount for entry, amount in self._unsaved.items() if amount})

    def _merged(self, file: Path, added: Counter[Entry]) -> tuple[Counter[Entry], FileVersion | None]:
        version = version_of(file)
        if not added and (found := _read(file)) is not None:
            return found, version
        oldest = self.earlier_months[-1]
        with locked(file, LOCK_WAIT_S):
            found = _read(file)
            if found is None and self._saved:
                _log.warning("the file of the API keys' usage %r is gone; it is written again", str(file))
            saved = Counter(self._saved if found is None else found)
            saved.update(added)
            saved = Counter({entry: amount for entry, amount in saved.items() if amount and entry.month >= oldest})
            replace_file(file, _content(saved))
            return saved, version_of(file)


def _refusal(limit: LimitName, most: int, used: int, amount: int, wait_s: float) -> OverloadedError | TooLargeError:
    """Says which limit is reached, and when there is room again."""
    unit, _, period = limit.partition("_per_")
    allowed = f"{limit} of this API key is {most}"
    if amount > most:
        advice = "send shorter texts" if period == "minute" else "the operator of this server can raise it"
        return TooLargeError(f"{allowed}, and this text has {amount} {unit}; {advice}", "input")
    asked = f", and this text has {amount}" if unit == "characters" else ""
    if period == "minute":
        message = f"{allowed}: {used} were used within the last minute{asked}; retry in {math.ceil(wait_s)} s"
        return OverloadedError(message, wait_s, code="rate_limit_exceeded")
    message = f"{allowed}: {used} are used{asked}; it begins again with the next month (UTC), in {math.ceil(wait_s)} s"
    return OverloadedError(message, wait_s, code=QUOTA_USED)


# --- the file ---


class _Amounts(BaseModel):
    requests: int = 0
    characters: int = 0
    audio_ms: int = 0


class _UsageDocument(BaseModel):
    version: Literal[1] = 1
    keys: dict[str, dict[Annotated[str, Field(pattern=r"^\d{4}-\d\d$")], _Amounts]] = Field(default_factory=dict)


def _read(file: Path) -> Counter[Entry] | None:
    """Returns None if there is no such file. Raises ConfigError."""
    document = read_file(file, _UsageDocument, "the file of the API keys' usage")
    if document is None:
        return None
    return Counter(
        {
            Entry(key, month, unit): getattr(amounts, unit)
            for key, months in document.keys.items()
            for month, amounts in months.items()
            for unit in _UNITS
        }
    )


def _content(saved: Counter[Entry]) -> bytes:
    document = _UsageDocument()
    for entry, amount in saved.items():
        amounts = document.keys.setdefault(entry.key, {}).setdefault(entry.month, _Amounts())
        setattr(amounts, entry.unit, amount)
    return document.model_dump_json(indent=1).encode()
