"""Closed loops and open loops."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable

import pytest

from oscine.errors import RequestError
from oscine_bench.exchange import Exchange, RequestFailure
from oscine_bench.http_client import HttpClient
from oscine_bench.load import LoadRun, OfferedLoad, RunLength, retry_after_s
from oscine_bench.targets import Target
from oscine_bench.workload import PlannedRequest, load_workload
from tests.oscine_bench.scripted import END, HEAD, chunk, listening, speech

SPOKEN = HEAD + chunk(speech(0.3)) + chunk(speech(0.2, 1))


class HoldingServer:
    """Responds once `may_respond` is true, and counts requests that wait at the same time."""

    def __init__(self, may_respond: Callable[["HoldingServer"], bool]) -> None:
        self._may_respond = may_respond
        self._changed = asyncio.Condition()
        self.waiting = self.peak = self.received = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                await reader.readexactly(int(head.split("content-length: ")[1].split("\r")[0]))
                async with self._changed:
                    self.waiting += 1
                    self.received += 1
                    self.peak = max(self.peak, self.waiting)
                    self._changed.notify_all()
                    await self._changed.wait_for(lambda: self._may_respond(self))
                    self.waiting -= 1
                writer.write(SPOKEN + END)


def drive(
    load: OfferedLoad, length: RunLength, may_respond: Callable[[HoldingServer], bool] = lambda server: True
) -> tuple[dict, HoldingServer, LoadRun]:
    async def main() -> tuple[dict, HoldingServer, LoadRun]:
        server = HoldingServer(may_respond)
        async with listening(server.serve) as port:
            target = Target(url=f"127.0.0.1:{port}")
            client = HttpClient(target, timeout_s=600)
            run = LoadRun(client, target, load_workload("english", ["short"]), load, length)
            row = await run.run()
            await client.close()
        return row, server, run

    return asyncio.run(main())


def test_a_closed_loop_has_exactly_its_number_of_callers() -> None:
    # The server waits for four requests, except at the end, when fewer are left.
    load, length = OfferedLoad("closed", 4), RunLength(requests=12, warmup_s=0)
    row, server, _ = drive(load, length, lambda server: server.waiting >= 4 or server.received >= 12)
    assert server.peak == 4 and server.received == 12
    assert (row["requests"], row["succeeded"], row["failures"]) == (12, 12, {})
    assert row["load"] == {"kind": "closed", "value": 4}
    assert row["audio_s"]["mean"] == pytest.approx(0.5)
    assert row["x_real_time"] == pytest.approx(12 * 0.5 / row["window_s"])
    assert row["requests_per_s"] == pytest.approx(12 / row["window_s"])
    assert row["peak_in_flight"] == 4


def test_an_open_loop_does_not_wait_for_responses() -> None:
    # The server waits for all requests, so callers that waited would deadlock.
    load, length = OfferedLoad("open", 500), RunLength(requests=20, warmup_s=0)
    row, server, run = drive(load, length, lambda server: server.received == 20)
    assert server.peak == 20 and row["succeeded"] == 20
    assert all(outcome.sent_s >= outcome.due_s for outcome in run.outcomes)


def test_the_warm_up_is_sent_but_not_counted() -> None:
    row, server, run = drive(OfferedLoad("closed", 1), RunLength(requests=3, warmup_s=0.05))
    warm = [outcome for outcome in run.outcomes if not outcome.measured]
    assert row["requests"] == 3 and server.received == 3 + len(warm) and warm
    assert max(one.sent_s for one in warm) < min(one.sent_s for one in run.outcomes if one.measured)


def test_an_open_loop_warms_up_too() -> None:
    row, _, run = drive(OfferedLoad("open", 200), RunLength(requests=3, warmup_s=0.1))
    assert row["requests"] == 3
    assert len(run.outcomes) > 3


def test_a_duration_counts_the_requests_sent_within_it() -> None:
    row, _, run = drive(OfferedLoad("closed", 2), RunLength(duration_s=0.1, warmup_s=0))
    assert row["window_s"] == pytest.approx(0.1)
    assert row["requests"] == len(run.outcomes) >= 1


def test_an_open_loop_sends_nothing_beyond_the_maximum_in_flight() -> None:
    length = RunLength(requests=10, warmup_s=0, max_in_flight=4)

    class StuckClient:
        """Responds once the last of ten requests was held back."""

        def __init__(self) -> None:
            self.release = asyncio.Event()

        async def send(self, request: PlannedRequest, due_s: float | None = None) -> Exchange:
            await self.release.wait()
            return Exchange(request, 0.0, failure=RequestFailure("cut"))

        async def close(self) -> None: ...

    async def main() -> dict:
        client = StuckClient()
        run = LoadRun(client, Target(url="x"), load_workload("english"), OfferedLoad("open", 5000), length)

        def keep(exchange: Exchange) -> None:
            if run.progress.answered == 5:  # this is the sixth
                client.release.set()

        run.keep = keep
        return await run.run()

    row = asyncio.run(main())
    assert {kind: failure["count"] for kind, failure in row["failures"].items()} == {"not_sent": 6, "cut": 4}


@pytest.mark.parametrize("load", [OfferedLoad("closed", 3), OfferedLoad("open", 1000)], ids=str)
def test_requests_that_run_at_the_time_limit_are_cut_off_and_counted_as_unfinished(load: OfferedLoad) -> None:
    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            await reader.read()  # until the client leaves

    async def main() -> tuple[dict, LoadRun]:
        async with listening(never_answer) as port:
            target = Target(url=f"127.0.0.1:{port}")
            client = HttpClient(target, timeout_s=600)
            length = RunLength(duration_s=60, warmup_s=0, max_s=0.2, max_in_flight=8)
            run = LoadRun(client, target, load_workload("english", ["short"]), load, length)
            row = await run.run()
            await client.close()
        return row, run

    row, run = asyncio.run(main())
    assert run.unfinished >= 1 and run.progress.in_flight == 0 and row["succeeded"] == 0


def test_a_load_ends_when_its_outcome_is_decided() -> None:
    # The next request is due in more than an hour.
    load, length = OfferedLoad("open", 1e-4), RunLength(duration_s=7200, warmup_s=0)

    class QuickClient:
        async def send(self, request: PlannedRequest, due_s: float | None = None) -> Exchange:
            now_s = time.perf_counter()
            return Exchange(request, now_s, now_s, now_s, failure=RequestFailure("http_429"))

        async def close(self) -> None: ...

    async def main() -> dict:
        run = LoadRun(QuickClient(), Target(url="x"), load_workload("english"), load, length)
        run.is_decided = lambda outcome: outcome.failure is not None
        due = iter([0.0, 3600.0])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("oscine_bench.load.arrivals", lambda rate, seed: due)
            return await run.run()

    row = asyncio.run(main())
    assert row["requests"] == 1 and 0 < row["window_s"] < 3600


def test_the_maximum_in_flight_does_not_limit_a_closed_loop() -> None:
    length = RunLength(requests=6, warmup_s=0, max_in_flight=4)
    row, server, _ = drive(OfferedLoad("closed", 6), length, lambda server: server.received == 6)
    assert server.peak == 6 and row["succeeded"] == 6


def test_a_refused_caller_waits_as_long_as_retry_after_says() -> None:
    class FullServerClient:
        def __init__(self) -> None:
            self.sent_s: list[float] = []

        async def send(self, request: PlannedRequest, due_s: float | None = None) -> Exchange:
            now_s = time.perf_counter()
            self.sent_s.append(now_s)
            refused = RequestFailure("http_429", "full")
            return Exchange(request, now_s, now_s, now_s, 429, headers={"retry-after": "0.15"}, failure=refused)

        async def close(self) -> None: ...

    async def main() -> tuple[dict, FullServerClient]:
        client = FullServerClient()
        length = RunLength(duration_s=0.4, warmup_s=0)
        run = LoadRun(client, Target(url="x"), load_workload("english"), OfferedLoad("closed", 1), length)
        return await run.run(), client

    row, client = asyncio.run(main())
    assert 1 <= row["requests"] <= 3 and row["failures"]["http_429"]["count"] == row["requests"]
    assert min((b - a for a, b in itertools.pairwise(client.sent_s)), default=1.0) >= 0.149


def test_without_retry_after_a_refused_caller_waits_one_second() -> None:
    refused = Exchange(PlannedRequest("", 0, 0), 0.0, 0.0, 1.0, 429)
    assert retry_after_s(refused) == 1.0
    refused.headers["retry-after"] = "Wed, 21 Oct 2026 07:28:00 GMT"
    assert retry_after_s(refused) == 1.0
    refused.headers["retry-after"] = "0"
    assert 0 < retry_after_s(refused) < 0.1


def test_encoded_responses_are_analyzed_after_the_load() -> None:
    class BadMp3Client:
        async def send(self, request: PlannedRequest, due_s: float | None = None) -> Exchange:
            exchange = Exchange(request, 0.0, 0.0, 1.0, 200)
            exchange.add(0.5, b"not an mp3")
            return exchange

        async def close(self) -> None: ...

    async def main() -> dict:
        target = Target(url="x", response_format="mp3")
        length = RunLength(requests=2, warmup_s=0)
        return await LoadRun(BadMp3Client(), target, load_workload("english"), OfferedLoad("closed", 1), length).run()

    assert asyncio.run(main())["failures"]["malformed"]["count"] == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: OfferedLoad("closed", 1.5),
        lambda: OfferedLoad("open", 0),
        lambda: RunLength(duration_s=0),
        lambda: RunLength(requests=0),
        lambda: RunLength(warmup_s=-1),
    ],
)
def test_impossible_loads_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(RequestError):
        make()
