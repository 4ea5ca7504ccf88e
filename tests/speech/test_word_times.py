"""The times of words follow the audio, and the end of a speech does not wait for an aligner that hangs."""

import asyncio
from typing import Any

import pytest

from oscine.align.word_split import TimedWord
from oscine.config import ServerConfig
from oscine.process.resources import Account
from oscine.speech.events import SegmentEnded, Words
from oscine.speech.limits import ledger_of
from oscine.speech.word_times import WordTimer

RATE_HZ = 100
PCM = bytes(2 * RATE_HZ)  # a second


class ScriptedAligner:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def align(self, pcm: bytes, rate_hz: int, text: str, language: str) -> list[TimedWord]:
        await self.go.wait()
        return [TimedWord(text, 0.0, len(pcm) / 2 / rate_hz)]


def timer(aligner: ScriptedAligner, account: Account, wait_s: float = 600.0) -> WordTimer:
    given: Any = aligner
    return WordTimer(given, account, "english", RATE_HZ, 1.0, wait_s=wait_s)


def audio_account() -> Account:
    return ledger_of(ServerConfig())["audio"]


def timed(words: list[Words]) -> list[bool]:
    return [one.words[0].start_s is not None for one in words]


def test_a_hung_aligner_delays_the_end_by_a_share_of_the_audio() -> None:
    async def run() -> tuple[list[Words], float]:
        clock = asyncio.get_running_loop()
        words, waited_s = timer(ScriptedAligner(), audio_account(), wait_s=0.0), 0.0
        wait = asyncio.wait

        async def note(tasks: Any, timeout: float | None = None) -> Any:
            nonlocal waited_s
            assert timeout is not None
            waited_s += timeout
            shift = clock.time() + timeout
            clock.time = lambda: shift  # type: ignore[method-assign]
            return await wait(tasks, timeout=0)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "wait", note)
            for number in range(8):
                words.push(PCM, SegmentEnded(number, "Hi", float(number), number + 1.0))
            return await words.rest(), waited_s

    words, waited_s = asyncio.run(run())
    assert timed(words) == [False] * 8 and 1.9 < waited_s <= 2.0
    assert words[0].warning == "the words have no times: the aligner was not done in time"


def test_the_audio_of_a_segment_counts_until_its_words_are_timed() -> None:
    async def run() -> None:
        aligner, account = ScriptedAligner(), audio_account()
        words = timer(aligner, account)
        free = account.limit.free
        words.push(bytes(free + 1000), SegmentEnded(0, "Hi", 0.0, 1.0))
        assert len(account) == 1000
        words.push(bytes(free + 100), None)
        assert len(account) == 1100
        aligner.go.set()
        assert timed(await words.rest()) == [True]
        assert len(account) == 0

    asyncio.run(run())


def test_without_room_for_the_audio_its_words_have_no_times() -> None:
    async def run() -> None:
        aligner, account = ScriptedAligner(), audio_account()
        aligner.go.set()
        words = timer(aligner, account)
        large = bytes(account.limit.free + 2)
        seconds = len(large) / 2 / RATE_HZ
        with account.hold(account.limit.in_all + account.limit.free):
            words.push(large, None)
        words.push(PCM, SegmentEnded(0, "Hi", 0.0, seconds + 1))
        words.push(PCM, SegmentEnded(1, "there", seconds + 1, seconds + 2))
        first, second = await words.rest()
        assert timed([first, second]) == [False, True] and "too much audio" in (first.warning or "")
        assert second.words[0].start_s == seconds + 1
        assert len(account) == 0

    asyncio.run(run())
