"""Callers who wait, crowds who do not, and the search for the largest crowd."""

import asyncio
import contextlib
import itertools
import math
import time
from collections.abc import Awaitable, Callable

import pytest

from oscine.bench.client import HttpClient
from oscine.bench.exchange import Exchange, Failure
from oscine.bench.load import Limits, Load, LoadRun, Span, retry_after_s, search_rate
from oscine.bench.metrics import Timeline, play
from oscine.bench.summary import Answer, Judge, Window, summarise
from oscine.bench.targets import Target
from oscine.bench.workload import Utterance, load_workload
from oscine.types import RequestError
from tests.bench.scripted import END, HEAD, chunk, listening, silence, speech

SOUND = HEAD + chunk(speech(0.3)) + chunk(speech(0.2, 1))


class Crowd:
    """A server that answers when `may_answer` says so, and knows how many were waiting at once."""

    def __init__(self, may_answer: Callable[["Crowd"], bool]) -> None:
        self._may_answer = may_answer
        self._changed = asyncio.Condition()
        self.waiting = self.most = self.came = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                await reader.readexactly(int(head.split("content-length: ")[1].split("\r")[0]))
                async with self._changed:
                    self.waiting += 1
                    self.came += 1
                    self.most = max(self.most, self.waiting)
                    self._changed.notify_all()
                    await self._changed.wait_for(lambda: self._may_answer(self))
                    self.waiting -= 1
                writer.write(SOUND + END)


def drive(load: Load, span: Span, may_answer: Callable[[Crowd], bool]) -> tuple[dict, Crowd, LoadRun]:
    async def main() -> tuple[dict, Crowd, LoadRun]:
        crowd = Crowd(may_answer)
        async with listening(crowd.serve) as port:
            target = Target(url=f"127.0.0.1:{port}")
            client = HttpClient(target, timeout_s=30)
            run = LoadRun(client, Judge(target), load_workload("english", ["short"]), load, span)
            row = await run.run()
            await client.close()
        return row, crowd, run

    return asyncio.run(main())


def test_a_closed_loop_has_as_many_callers_as_it_says_and_never_more() -> None:
    # Nobody is answered before four are there, except at the end, when fewer are left.
    row, crowd, _ = drive(
        Load("closed", 4), Span(requests=12, warmup_s=0), lambda crowd: crowd.waiting >= 4 or crowd.came >= 12
    )
    assert crowd.most == 4 and crowd.came == 12
    assert (row["requests"], row["succeeded"], row["failures"]) == (12, 12, {})
    assert row["load"] == {"kind": "closed", "value": 4}
    assert row["audio_s"]["mean"] == pytest.approx(0.5)
    assert row["x_real_time"] == pytest.approx(12 * 0.5 / row["window_s"])
    assert row["requests_per_s"] == pytest.approx(12 / row["window_s"])
    assert row["peak_in_flight"] == 4


def test_an_open_loop_does_not_wait_for_answers() -> None:
    # Nobody is answered before all have come: callers who waited would wait for ever.
    row, crowd, run = drive(Load("open", 500), Span(requests=20, warmup_s=0), lambda crowd: crowd.came == 20)
    assert crowd.most == 20 and row["succeeded"] == 20
    assert all(answer.sent_s >= answer.due_s for answer in run.answers)


def test_the_warm_up_is_sent_but_not_counted() -> None:
    row, crowd, run = drive(Load("closed", 1), Span(requests=3, warmup_s=0.05), lambda crowd: True)
    warm = [answer for answer in run.answers if not answer.measured]
    assert row["requests"] == 3 and crowd.came == 3 + len(warm) and warm
    assert max(answer.sent_s for answer in warm) < min(answer.sent_s for answer in run.answers if answer.measured)


def test_an_open_loop_warms_up_too() -> None:
    row, _, run = drive(Load("open", 200), Span(requests=3, warmup_s=0.1), lambda crowd: True)
    assert row["requests"] == 3
    assert len(run.answers) > 3


def test_a_duration_counts_what_was_sent_within_it() -> None:
    row, _, run = drive(Load("closed", 2), Span(duration_s=0.1, warmup_s=0), lambda crowd: True)
    assert row["window_s"] == pytest.approx(0.1)
    assert row["requests"] == len(run.answers) >= 1


def test_beyond_the_most_in_flight_nothing_is_sent() -> None:
    span = Span(requests=10, warmup_s=0, max_in_flight=4)

    class Stuck:
        """Answers once the last of ten was turned away."""

        def __init__(self) -> None:
            self.release = asyncio.Event()

        async def speak(self, utterance: Utterance, due_s: float | None = None) -> Exchange:
            await self.release.wait()
            return Exchange(utterance, 0.0, failure=Failure("cut"))

        async def close(self) -> None: ...

    async def main() -> dict:
        client = Stuck()
        run = LoadRun(client, Judge(Target(url="x")), load_workload("english"), Load("open", 5000), span)

        def seen(exchange: Exchange) -> None:
            if run.progress.answered == 5:  # the sixth is being noted now
                client.release.set()

        run.keep = seen
        return await run.run()

    row = asyncio.run(main())
    assert {kind: failure["count"] for kind, failure in row["failures"].items()} == {"not_sent": 6, "cut": 4}


def test_a_closed_loop_of_many_callers_sends_for_all_of_them() -> None:
    span = Span(requests=6, warmup_s=0, max_in_flight=4)
    row, crowd, _ = drive(Load("closed", 6), span, lambda crowd: crowd.came == 6)
    assert crowd.most == 6 and row["succeeded"] == 6


def test_a_caller_who_is_sent_away_comes_back_when_he_was_told_to() -> None:
    class Full:
        def __init__(self) -> None:
            self.came_s: list[float] = []

        async def speak(self, utterance: Utterance, due_s: float | None = None) -> Exchange:
            now_s = time.perf_counter()
            self.came_s.append(now_s)
            refused = Failure("http_429", "full")
            return Exchange(utterance, now_s, now_s, now_s, 429, headers={"retry-after": "0.15"}, failure=refused)

        async def close(self) -> None: ...

    async def main() -> tuple[dict, Full]:
        client = Full()
        span = Span(duration_s=0.4, warmup_s=0)
        run = LoadRun(client, Judge(Target(url="x")), load_workload("english"), Load("closed", 1), span)
        return await run.run(), client

    row, client = asyncio.run(main())
    assert 2 <= row["requests"] <= 3 and row["failures"]["http_429"]["count"] == row["requests"]
    assert min(b - a for a, b in itertools.pairwise(client.came_s)) >= 0.149


def test_who_is_not_told_when_to_come_back_waits_a_second() -> None:
    silent = Exchange(Utterance("", 0, 0), 0.0, 0.0, 1.0, 429)
    assert retry_after_s(silent) == 1.0
    silent.headers["retry-after"] = "Wed, 21 Oct 2026 07:28:00 GMT"
    assert retry_after_s(silent) == 1.0
    silent.headers["retry-after"] = "0"
    assert 0 < retry_after_s(silent) < 0.1


def test_encoded_answers_are_judged_after_the_load() -> None:
    class Silent:
        async def speak(self, utterance: Utterance, due_s: float | None = None) -> Exchange:
            exchange = Exchange(utterance, 0.0, 0.0, 1.0, 200)
            exchange.take(0.5, b"no mp3 at all")
            return exchange

        async def close(self) -> None: ...

    async def main() -> dict:
        judge = Judge(Target(url="x", response_format="mp3"))
        return await LoadRun(
            Silent(), judge, load_workload("english"), Load("closed", 1), Span(requests=2, warmup_s=0)
        ).run()

    assert asyncio.run(main())["failures"]["malformed"]["count"] == 2


def good(index: int, sent_s: float, e2e_s: float, *arrivals: tuple[float, float], measured: bool = True) -> Answer:
    timeline = Timeline(tuple(at for at, _ in arrivals), tuple(total for _, total in arrivals))
    return Answer(
        *(index, measured, sent_s, sent_s, e2e_s),
        timeline=timeline,
        first_byte_s=timeline.first_audio_s,
        silence_s=0.0,
        audible_s=timeline.first_audio_s,
        playback=None if timeline.came_whole else play(timeline),
    )


def test_a_row_is_the_sum_of_its_requests() -> None:
    answers = [
        good(0, 9.0, 2.0, (0.5, 1.0), (1.5, 2.0), measured=False),  # its second half comes within the window
        good(0, 10.0, 1.0, (0.1, 1.0), (0.6, 2.0)),
        good(1, 11.0, 1.2, (0.2, 0.5), (1.0, 2.0)),  # 0.3 s late
        good(2, 12.0, 0.4, (0.3, 2.0)),  # in one piece
        Answer(3, True, 12.5, 12.5, 0.01, Failure("http_429", "full")),
        good(4, 13.5, 1.5, (0.4, 1.0), (1.0, 2.0)),  # ends after the window
    ]
    row = summarise(answers, Window(10.0, 14.0))
    assert (row["requests"], row["succeeded"]) == (5, 4)
    assert row["failures"] == {"http_429": {"count": 1, "first": "full"}}
    assert row["x_real_time"] == pytest.approx((1.0 + 2.0 + 2.0 + 2.0 + 1.0) / 4)
    assert row["requests_per_s"] == pytest.approx(4 / 4)  # the one of the warm-up, and three of the measured
    assert row["first_audio_ms"]["p50"] == pytest.approx(200)
    assert row["first_audio_ms"]["p95"] == pytest.approx(400)
    assert row["e2e_ms"]["most"] == pytest.approx(1500)
    assert row["gap_ms"]["most"] == pytest.approx(800)
    assert row["underruns"] == {
        "applicable": 3,
        "requests": 1,
        "over_100_ms": 1,
        "share_over_100_ms": pytest.approx(1 / 3),
        "worst_deficit_ms": pytest.approx(300),
        "longest_stall_ms": pytest.approx(300),
    }
    assert row["peak_in_flight"] == 2
    assert row["timelines"]["worst"]["index"] == 1
    assert row["timelines"]["typical"]["arrived_ms"] == pytest.approx([100, 600])


def test_a_row_of_failures_has_no_figures_and_says_so() -> None:
    row = summarise([Answer(0, True, 0.0, 0.0, 1.0, Failure("cut"))], Window(0.0, 1.0))
    assert row["first_audio_ms"] is None and row["underruns"]["worst_deficit_ms"] is None
    assert Limits().broken_by(row) == ["cut: 1"]


def test_limits_name_everything_that_broke_them() -> None:
    late = summarise([good(0, 0.0, 3.0, (0.2, 0.5), (1.0, 2.0))], Window(0.0, 3.0))
    assert Limits(p95_ms=100).broken_by(late) == ["underruns: worst 300.0 ms", "first audio p95: 200.0 ms"]
    assert Limits(p95_ms=200, underrun_ms=301).broken_by(late) == []
    whole = summarise([good(0, 0.0, 3.0, (0.2, 0.5))], Window(0.0, 3.0))
    assert Limits(p95_ms=200).broken_by(whole) == ["underruns: not applicable, the answers were not streamed"]
    assert Limits(p95_ms=200, underrun_ms=math.inf).broken_by(whole) == []
    assert Limits().broken_by(summarise([], Window(0.0, 1.0))) == ["no request came in the time that was measured"]


def test_an_inaudible_answer_breaks_the_limits() -> None:
    exchange = Exchange(Utterance("", 0, 0), 0.0, 0.0, 1.0, 200)
    exchange.take(0.1, silence(0.5))
    exchange.take(0.2, silence(0.5))
    row = summarise([Judge(Target(url="x"))(exchange)], Window(0.0, 1.0))
    assert row["inaudible"] == 1 and row["audible_ms"] is None
    assert Limits(p95_ms=200).broken_by(row) == ["nothing audible: 1"]


def searched(limit: float, **options) -> tuple[float | None, list[float]]:
    tried: list[float] = []

    async def holds(rate: float) -> bool:
        tried.append(rate)
        return rate <= limit

    judged: Callable[[float], Awaitable[bool]] = holds
    return asyncio.run(search_rate(judged, **options)), tried


@pytest.mark.parametrize("limit", [0.3, 1.0, 7.0, 99.5, 640.0])
def test_the_search_finds_the_highest_rate_that_holds(limit: float) -> None:
    best, tried = searched(limit)
    assert best is not None and best <= limit
    assert any(limit < rate <= best * 1.05 for rate in tried)
    assert len(tried) <= 16


def test_the_search_ends_at_its_bounds() -> None:
    assert searched(math.inf, most=100.0)[0] == 100.0
    best, tried = searched(0.0, first=1.0)
    assert best is None and min(tried) >= 0.05


@pytest.mark.parametrize(
    "make",
    [
        lambda: Load("closed", 1.5),
        lambda: Load("open", 0),
        lambda: Span(duration_s=0),
        lambda: Span(requests=0),
        lambda: Span(warmup_s=-1),
        lambda: Limits(p95_ms=0),
        lambda: Limits(p95_ms=math.nan),
        lambda: Limits(underrun_ms=-1),
    ],
)
def test_loads_that_cannot_be_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(RequestError):
        make()
