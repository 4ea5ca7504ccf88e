"""`oscine serve` with more listeners than it can carry, and with clients that vanish: real processes, over loopback.
The same as benchmarks/stress.py, but shorter; what it promises does not depend on how fast this machine is."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.server_process import Figures, ServerProcess
from benchmarks.server_trials import (
    ENVIRONMENT,
    GAP_S,
    SETTINGS,
    StressLoad,
    complaints_of_overload,
    complaints_of_vanishing,
    fill_pools,
    overload,
    vanishing,
)
from oscine.frames import FRAME_RATE_HZ
from oscine_bench.load import OfferedLoad, RunLength
from tests.conftest import CheckpointMaker

Served = tuple[ServerProcess, str]
FRAMES = 20
MIN_RATE_PER_S = 5.0  # eight streams at once, which is all there are slots for
HASTY = SETTINGS + "queue_wait_s = 1.0\n"  # who waits longer only makes the test longer


@pytest.fixture(scope="module")
def served(small_checkpoints: CheckpointMaker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    model: Path = small_checkpoints("0b6", "custom_voice", eos_gain=0.0)
    server = ServerProcess(model, tmp_path_factory.mktemp("serve"), settings=HASTY, environment=ENVIRONMENT)
    try:
        yield server, server.wait_ready()
    finally:
        server.close()


def test_at_three_times_its_capacity_who_is_let_in_hears_no_gap_and_nothing_grows(served: Served) -> None:
    server, url = served
    burst = fill_pools(url, FRAMES)
    alone = StressLoad(url, FRAMES).run(OfferedLoad("closed", 1), RunLength(requests=1, warmup_s=0))
    assert alone["audio_s"]["mean"] == FRAMES / FRAME_RATE_HZ, "exactly as long as was asked"
    row = overload(server, url, max(3 * burst["requests_per_s"], MIN_RATE_PER_S), 8.0, FRAMES)
    # Where even a single stream is too much for this machine, or others have its cores, that is no fault of the load.
    excused_s = (alone["underruns"]["worst_deficit_ms"] or 0.0) / 1e3 + row["engine_starved_s"]
    assert complaints_of_overload(row, GAP_S + excused_s) == [], row


def test_two_hundred_clients_that_vanish_leave_nothing_behind(served: Served) -> None:
    server, url = served
    row = vanishing(server, url, 200, within_s=3.0)
    assert complaints_of_vanishing(row) == [], row
    assert row["metrics"]["requests_by_status"]["499"], "some were let in"
    assert StressLoad(url, FRAMES).run(OfferedLoad("closed", 1), RunLength(requests=1, warmup_s=0))["succeeded"] == 1


def test_after_all_that_it_stops_as_if_nothing_had_been(served: Served) -> None:
    """The last one: it ends the server of this file."""
    server, url = served
    assert Figures.of(url)["oscine_engine_restarts_total"] == 0
    assert server.terminate() == 0
    stopping = server.log_line("stopping")
    assert stopping is not None and stopping["streams"] == 0
    assert not [line for line in server.lines if line.get("level") in ("warning", "error")]
