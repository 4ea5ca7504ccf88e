"""What keys use: exact within a minute and a month, refused with the time of the next try, kept over restarts, added up
over servers."""

import logging
import random
from pathlib import Path

import pytest

from oscine.errors import ConfigError, OverloadedError, TooLargeError
from oscine.server.http.key_file import KeyLimits
from oscine.server.http.key_usage import Counted, KeyUsage, MinuteWindow
from tests.server.key_holders import START_S, SetClock

MONTH = "2026-11"


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def usage(tmp_path: Path, clock: SetClock) -> KeyUsage:
    return KeyUsage(tmp_path / "usage.json", clock)


def counted(usage: KeyUsage, characters: int, key: str = "acme", **limits: int) -> Counted:
    """The count of a speech that has not ended yet."""
    speech = Counted()
    usage.count(key, KeyLimits(**limits), {"requests": 1, "characters": characters}, speech)
    return speech


def count(usage: KeyUsage, characters: int, key: str = "acme", **limits: int) -> None:
    usage.settle(key, counted(usage, characters, key, **limits), 1500)


def used(usage: KeyUsage, month: str = MONTH, key: str = "acme") -> tuple[int, int, int]:
    requests, characters, audio_ms = (
        usage.of_month(key, month, unit) for unit in ("requests", "characters", "audio_ms")
    )
    return requests, characters, audio_ms


def test_the_window_equals_a_list_of_what_was_counted() -> None:
    draws, window, now_s = random.Random(1), MinuteWindow(), START_S
    speeches: list[tuple[MinuteWindow, int, int]] = []
    kept: list[tuple[int, int]] = []
    for _ in range(2000):
        now_s += draws.choice((0.0, 0.3, 2.0, 25.0))
        kept = [(second, amount) for second, amount in kept if int(now_s) - second < 60]
        assert window.total(now_s) == sum(amount for _, amount in kept)
        most = draws.randrange(60)
        wait_s = window.wait_s(most, now_s)
        later = [amount for second, amount in kept if int(now_s + wait_s) - second < 60]
        assert sum(later) <= most or wait_s == 0
        if wait_s:  # and not a second earlier
            assert sum(amount for second, amount in kept if int(now_s + wait_s - 1) - second < 60) > most
        amount, speech = draws.randrange(1, 20), MinuteWindow()
        for one in (window, speech):
            one.add(amount, now_s)
        kept.append((int(now_s), amount))
        speeches.append((speech, int(now_s), amount))
        if draws.random() < 0.3:  # one of the last fails
            failed, second, amount = speeches.pop(draws.randrange(max(0, len(speeches) - 50), len(speeches)))
            window.remove(failed)
            if (second, amount) in kept:
                kept.remove((second, amount))


def test_a_window_holds_a_minute_however_long_it_is_used() -> None:
    window = MinuteWindow()
    for second in range(10_000):
        window.add(1, START_S + second)
    assert len(window.seconds) == 60 and window.total(START_S + 9_999) == 60


def test_a_clock_that_is_set_back_does_not_stop_a_key() -> None:
    window, speech = MinuteWindow(), MinuteWindow()
    for one in (window, speech):
        one.add(10, START_S)
    assert window.total(START_S - 3600) == 0
    window.add(4, START_S)
    window.remove(speech)
    assert window.total(START_S) == 0  # not below


def test_what_is_taken_back_late_leaves_the_counts_of_others(usage: KeyUsage, clock: SetClock) -> None:
    failed = counted(usage, 80)
    clock.now_s += 61
    count(usage, 80)
    usage.refund("acme", failed)
    assert usage.of_minute("acme", "characters") == 80 and usage.of_minute("acme", "requests") == 1
    assert used(usage) == (1, 80, 1500)
    with pytest.raises(OverloadedError):
        count(usage, 80, characters_per_minute=100)


def test_the_limits_of_a_minute_say_when_to_retry(usage: KeyUsage, clock: SetClock) -> None:
    for _ in range(2):
        count(usage, 40, characters_per_minute=100, requests_per_minute=3)
        clock.now_s += 10
    with pytest.raises(OverloadedError) as refused:
        count(usage, 30, characters_per_minute=100, requests_per_minute=3)
    error = refused.value
    assert error.code == "rate_limit_exceeded" and error.retry_after_s == 40
    assert str(error) == (
        "characters_per_minute of this API key is 100: 80 were used within the last minute, and this text has 30; "
        "retry in 40 s"
    )
    count(usage, 20, characters_per_minute=100, requests_per_minute=3)
    with pytest.raises(OverloadedError, match=r"^requests_per_minute of this API key is 3: 3 were used") as again:
        count(usage, 0, characters_per_minute=100, requests_per_minute=3)
    assert (error.key_limit, again.value.key_limit) == ("characters_per_minute", "requests_per_minute")
    clock.now_s += 40
    count(usage, 30, characters_per_minute=100, requests_per_minute=3)
    usage.refuse("acme", error)
    usage.refuse("", error)
    usage.refuse("acme", OverloadedError("The server is full. Retry in 2.5 s.", 2.5))
    assert usage.refused == {("acme", "characters_per_minute"): 1}
    assert used(usage) == (4, 130, 6000)


def test_a_limit_of_a_month_begins_again_with_the_next(usage: KeyUsage, clock: SetClock) -> None:
    count(usage, 90, characters_per_month=100)
    with pytest.raises(OverloadedError, match="characters_per_month of this API key is 100: 90 are used") as refused:
        count(usage, 11, characters_per_month=100)
    assert refused.value.code == "insufficient_quota"
    assert refused.value.retry_after_s == 11.5 * 86400 == usage.next_month_s - clock.now_s
    count(usage, 10, characters_per_month=100)
    clock.now_s += refused.value.retry_after_s
    count(usage, 100, characters_per_month=100)
    assert used(usage) == (2, 100, 3000) and used(usage, "2026-12") == (1, 100, 1500)
    assert usage.earlier_months == ["2026-11", "2026-10"]


def test_a_text_that_can_never_be_spoken_is_too_large(usage: KeyUsage) -> None:
    for limit in ("characters_per_minute", "characters_per_month"):
        with pytest.raises(TooLargeError, match=f"{limit} of this API key is 100, and this text has 101 characters"):
            count(usage, 101, **{limit: 100})
    assert used(usage) == (0, 0, 0)


def test_what_is_refunded_is_not_counted(usage: KeyUsage) -> None:
    usage.refund("acme", counted(usage, 80, characters_per_month=100, characters_per_minute=100))
    assert used(usage) == (0, 0, 0)
    count(usage, 100, characters_per_month=100, characters_per_minute=100)


def test_months_are_kept_over_a_restart_and_old_ones_go(usage: KeyUsage, clock: SetClock, tmp_path: Path) -> None:
    file = tmp_path / "usage.json"
    count(usage, 90)
    usage.save()
    before = file.stat()
    usage.save()  # nothing is new
    assert file.stat().st_ino == before.st_ino
    again = KeyUsage(file, clock)
    assert used(again) == (1, 90, 1500)
    with pytest.raises(OverloadedError):
        count(again, 11, characters_per_month=100)
    clock.now_s += 31 * 86400
    count(again, 1)
    again.save()
    assert used(KeyUsage(file, clock)) == (1, 90, 1500)
    clock.now_s += 60 * 86400
    count(again, 1)
    again.save()
    assert used(KeyUsage(file, clock)) == (0, 0, 0) and used(again, "2026-12") == (1, 1, 1500)


def test_servers_that_share_a_file_add_up(usage: KeyUsage, clock: SetClock, tmp_path: Path) -> None:
    other = KeyUsage(tmp_path / "usage.json", clock)
    count(usage, 10)
    count(other, 20)
    count(other, 5, "else")
    usage.save()
    other.save()
    assert used(other) == (2, 30, 3000)
    usage.save()  # takes over what the other one has added
    assert used(usage) == (2, 30, 3000) and used(usage, key="else") == (1, 5, 1500)
    refunded = counted(usage, 7)
    usage.save()
    usage.refund("acme", refunded)
    usage.save()
    other.save()
    assert used(other) == (2, 30, 3000)


def test_a_file_that_is_gone_is_written_again(
    usage: KeyUsage, clock: SetClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "usage.json"
    count(usage, 90)
    usage.save()
    file.unlink()
    with caplog.at_level(logging.WARNING, "oscine"):
        usage.save()
        usage.save()
    assert caplog.text.count("is gone; it is written again") == 1 and usage.is_saved
    assert used(usage) == used(KeyUsage(file, clock)) == (1, 90, 1500)
    file.unlink()
    count(usage, 5)
    usage.save()
    assert used(usage) == used(KeyUsage(file, clock)) == (2, 95, 3000)


def test_usage_that_cannot_be_saved_is_kept_until_it_can(
    usage: KeyUsage, clock: SetClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "usage.json"
    file.write_text("{", encoding="utf-8")
    count(usage, 10)
    with caplog.at_level(logging.WARNING, "oscine"):
        usage.save()
        usage.save()
    assert caplog.text.count("is not saved") == 1 and not usage.is_saved and used(usage) == (1, 10, 1500)
    with pytest.raises(ConfigError, match=r"usage.json' cannot be used"):
        KeyUsage(file, clock)
    file.unlink()
    usage.save()
    assert usage.is_saved and used(KeyUsage(file, clock)) == (1, 10, 1500)
