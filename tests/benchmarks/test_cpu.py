"""The benchmark of published sizes on a CPU runs with small weights, and its table has every figure."""

from types import SimpleNamespace

import pytest

from benchmarks import cpu
from benchmarks.report_sections import cpu_section
from tests.conftest import CheckpointMaker

pytestmark = pytest.mark.slow


def test_every_kind_is_measured_and_shown(
    small_checkpoints: CheckpointMaker, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    monkeypatch.setattr(cpu, "random_weights", lambda scratch, size: small_checkpoints(size, "custom_voice"))
    options = SimpleNamespace(sizes=["0b6"], kinds=["fp32", "int8"], listeners=[2], seconds=0, scratch=tmp_path)
    alone = cpu.alone
    monkeypatch.setattr(cpu, "alone", lambda folder, kind: loaded)
    loaded = alone(small_checkpoints("0b6", "custom_voice"), "int8")  # one process is enough
    said: list[str] = []
    sizes = {"0b6": cpu.measure(options, "0b6", said.append)}
    for one in sizes["0b6"].values():
        assert one["resident_mib"]["all"] > one["resident_mib"]["mapped"] > 0
        for row in one["listeners"].values():
            assert 0 < row["talker_ms"] + row["predictor_ms"] < row["launch_ms"] <= row["undisturbed_ms"]
    assert len(said) == 2 + 2
    figures = {"threads": 2, "instruction_sets": ["AVX2"], "load_average": 2.0, "sizes": sizes}
    result = {"name": "cpu", "machine": "", "commit": "", "date": "", "command": "", "versions": {"python": ""}}
    shown = cpu_section([result | {"figures": figures}])
    assert "| int8 | 2 |" in shown and "**0.6B**" in shown
