"""`oscine serve` under overload and with clients that disconnect: real processes, over loopback. A short form of
`python -m benchmarks.soak --stress`; the results do not depend on the speed of the machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.server_process import Figures, ServerProcess
from benchmarks.stress import (
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
from oscine.audio.pcm import FRAME_RATE_HZ
from oscine_bench.load import OfferedLoad, RunLength
from tests.conftest import CheckpointMaker

pytestmark = pytest.mark.slow

Served = tuple[ServerProcess, str]
FRAMES = 20
MIN_RATE_PER_S = 5.0  # occupies all eight slots
SHORT_WAIT = SETTINGS + "queue_wait_s = 1.0\n"  # longer waits only make the test longer


@pytest.fixture(scope="module")
def served(small_checkpoints: CheckpointMaker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    model: Path = small_checkpoints("0b6", "custom_voice", eos_gain=0.0)
    server = ServerProcess(model, tmp_path_factory.mktemp("serve"), settings=SHORT_WAIT, environment=ENVIRONMENT)
    try:
        yield server, server.wait_ready()
    finally:
        server.close()


def test_at_three_times_its_capacity_admitted_streams_have_no_gaps_and_nothing_grows(served: Served) -> None:
    server, url = served
    burst = fill_pools(url, FRAMES)
    alone = StressLoad(url, FRAMES).run(OfferedLoad("closed", 1), RunLength(requests=1, warmup_s=0))
    assert alone["audio_s"]["mean"] == FRAMES / FRAME_RATE_HZ, "the requested length"
    row = overload(server, url, max(3 * burst["requests_per_s"], MIN_RATE_PER_S), 8.0, FRAMES)
    # Deficits of a single stream, and time without CPU, are the fault of the machine.
    excused_s = (alone["underruns"]["worst_deficit_ms"] or 0.0) / 1e3 + row["engine_starved_s"]
    assert complaints_of_overload(row, GAP_S + excused_s) == [], row


def test_two_hundred_disconnected_clients_leave_no_resources_behind(served: Served) -> None:
    server, url = served
    row = vanishing(server, url, 200, within_s=3.0)
    assert complaints_of_vanishing(row) == [], row
    assert row["metrics"]["requests_by_status"]["499"], "some were admitted"
    assert StressLoad(url, FRAMES).run(OfferedLoad("closed", 1), RunLength(requests=1, warmup_s=0))["succeeded"] == 1


def test_afterwards_the_server_stops_cleanly(served: Served) -> None:
    """Must run last: it stops the server of this module."""
    server, url = served
    assert Figures.of(url)["oscine_engine_restarts_total"] == 0
    assert server.terminate() == 0
    stopping = server.log_line("stopping")
    assert stopping is not None and stopping["streams"] == 0
    assert not [line for line in server.lines if line.get("level") in ("warning", "error")]
