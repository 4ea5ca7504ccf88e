"""Recordings of the demo voice: a folder for each number of requests at once, with equal audio."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from benchmarks.demo_recordings import record_all

pytestmark = pytest.mark.slow


def test_texts_are_recorded_one_by_one_and_at_once(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("Good morning.\nThe bird sings.\n", encoding="utf-8")
    out = tmp_path / "recordings"
    record_all("cpu", (1, 2), out, str(texts))
    assert {folder.name for folder in out.iterdir()} == {"1", "2"}
    assert json.loads((out / "2" / "result.json").read_text())["name"] == "CPU, 2 at once"
    for name in ("000.wav", "003.wav"):  # two texts, two takes each
        alone, beside = (soundfile.read(out / folder / name, dtype="int16")[0] for folder in ("1", "2"))
        assert len(alone) == len(beside) > 0 and np.abs(alone.astype(int) - beside).max() <= 1
