"""`python -m benchmarks.admission` measures every part of an admission."""

import pytest
import torch

from benchmarks.admission import arguments, measure
from benchmarks.report_sections import ADMISSION_PARTS, TRANSFERS_UNDER_WAY, admission_table
from oscine.model.checkpoint import find_checkpoint

pytestmark = pytest.mark.slow


def test_the_page_names_the_number_of_transfers_that_the_host_makes_before_it_waits() -> None:
    pytest.importorskip("triton")
    from oscine.runner.cuda import admission_block

    assert admission_block.MAX_TRANSFERS == TRANSFERS_UNDER_WAY


def test_every_part_of_an_admission_takes_some_time() -> None:
    words, threads = "--device cpu --newcomers 1 2 --rounds 1", torch.get_num_threads()
    try:
        figures = measure(find_checkpoint("demo"), arguments(words.split()))
    finally:
        torch.set_num_threads(threads)
    assert [*figures["newcomers"]] == ["1", "2"] and figures["prompt_rows"] > 10
    for row in figures["newcomers"].values():
        assert set(row) == set(ADMISSION_PARTS)
        assert all(row[name] > 0 for name in ADMISSION_PARTS if name not in ("session_us", "wait_us"))
        assert row["wait_us"] == 0, "a CPU has no device to wait for"
    assert admission_table(figures["newcomers"]).count("\n") == 3
