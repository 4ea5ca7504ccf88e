"""The bounded cache: values by key, the least recently used leaves first, and no thread waits for another's work."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from oscine.cache import BoundedCache


def test_a_value_is_made_once() -> None:
    cache: BoundedCache[list[int]] = BoundedCache(4)
    first = cache.get_or_make("a", lambda: [1])
    assert cache.get_or_make("a", lambda: [2]) is first
    assert len(cache) == 1


def test_it_never_holds_more_than_its_capacity() -> None:
    cache: BoundedCache[int] = BoundedCache(3)
    for number in range(100):
        assert cache.get_or_make(str(number), lambda number=number: number) == number
        assert len(cache) <= 3


def test_the_least_recently_used_leaves_first() -> None:
    cache: BoundedCache[str] = BoundedCache(2)
    made: list[str] = []

    def ask(key: str) -> None:
        cache.get_or_make(key, lambda: made.append(key) or key)  # type: ignore[func-returns-value]

    for key in ("a", "b", "a", "c"):  # c takes b's place: a was used after b
        ask(key)
    assert made == ["a", "b", "c"]
    ask("a")
    assert made == ["a", "b", "c"]
    ask("b")
    assert made == ["a", "b", "c", "b"]


def test_a_failure_is_not_kept() -> None:
    cache: BoundedCache[int] = BoundedCache(2)

    def fail() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.get_or_make("a", fail)
    assert len(cache) == 0
    assert cache.get_or_make("a", lambda: 5) == 5


def test_a_slow_maker_keeps_nobody_waiting() -> None:
    cache: BoundedCache[str] = BoundedCache(4)
    go_on = threading.Event()

    def slow() -> str:
        assert go_on.wait(10)
        return "slow"

    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(cache.get_or_make, "a", slow)
        assert cache.get_or_make("b", lambda: "quick") == "quick"
        go_on.set()
        assert pending.result(10) == "slow"
    assert len(cache) == 2


def test_many_threads_get_their_own_keys_value() -> None:
    cache: BoundedCache[int] = BoundedCache(8)
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda n: cache.get_or_make(str(n % 20), lambda: n % 20), range(2000)))
    assert got == [n % 20 for n in range(2000)]
    assert len(cache) == 8
