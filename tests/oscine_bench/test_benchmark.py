"""A search over a scripted server, on a clock of its own."""

import asyncio
import itertools
import math
from collections.abc import Callable, Iterable

from oscine_bench.benchmark import Bench, SearchResult
from oscine_bench.load import RunLength
from oscine_bench.search import SearchLimits
from oscine_bench.summary import Row
from oscine_bench.targets import Target
from oscine_bench.workload import load_workload
from tests.oscine_bench.scripted import END, HEAD, answer_requests, chunk, listening, speech

SOUND = HEAD + chunk(speech(0.3)) + chunk(speech(0.2, 1)) + END
ANY_TIME = SearchLimits(p95_ms=math.inf, underrun_ms=math.inf)


def searched(
    answer: Callable[[dict], bytes], readings_s: Iterable[float], time_limit_s: float, first: float = 50
) -> tuple[SearchResult, list[Row], list[str]]:
    """Returns the result, the rows and the messages. Each rate reads the clock once, and the start before it."""

    async def main() -> tuple[SearchResult, list[Row], list[str]]:
        rows: list[Row] = []
        said: list[str] = []
        async with listening(lambda reader, writer: answer_requests(reader, writer, "tiny", answer)) as port:
            target = Target(url=f"http://127.0.0.1:{port}")
            length = RunLength(requests=3, warmup_s=0)
            bench = Bench(target, load_workload("english"), length, on_row=rows.append, on_step=said.append)
            bench.clock = iter(readings_s).__next__
            found = await bench.search(ANY_TIME, first=first, time_limit_s=time_limit_s)
        return found, rows, said

    return asyncio.run(main())


def test_a_search_ends_before_a_rate_that_its_time_limit_does_not_allow() -> None:
    found, rows, said = searched(lambda request: SOUND, itertools.count(0.0, 100.0), time_limit_s=300.0)
    assert found == SearchResult(100, complete=False)
    assert [row["load"]["value"] for row in rows] == [50, 100]  # at 100 s and at 200 s
    assert "within 200 s" in said[0] and "within 100 s" in said[1]
    assert said[2].startswith("the time limit of 300 s ends the search before 200/s")


def test_a_rate_whose_responses_do_not_end_within_the_time_limit_does_not_hold() -> None:
    answers = itertools.count()
    # Only the first request, which is no part of a rate, is answered. 0.3 s are left for the first rate.
    found, (row,), _ = searched(lambda request: b"" if next(answers) else SOUND, [0.0, 0.7, 1.0], time_limit_s=1.0)
    assert found == SearchResult(None, complete=False)
    assert row["limits_broken"] and row["succeeded"] == 0
