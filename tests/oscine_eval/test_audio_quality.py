"""DNSMOS, silence and clipping."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from oscine.audio.pcm import Samples
from oscine_eval.audio_quality import Dnsmos, clipped_share, silence_share
from oscine_eval.recognizer import RATE_HZ


def test_dnsmos_gets_audio_within_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Samples] = []

    def run(sound: Samples, sr: int) -> dict[str, float]:
        assert sr == RATE_HZ
        seen.append(sound)
        return {"ovrl_mos": 3.0, "sig_mos": 3.5, "bak_mos": 4.0, "p808_mos": 3.2}

    monkeypatch.setitem(sys.modules, "speechmos", ModuleType("speechmos"))
    monkeypatch.setitem(sys.modules, "speechmos.dnsmos", SimpleNamespace(run=run))
    dnsmos = Dnsmos()
    assert dnsmos.rate(np.full(RATE_HZ, 1.01, np.float32)) == {"ovrl": 3.0, "sig": 3.5, "bak": 4.0, "p808": 3.2}
    assert seen[0].max() == 1.0  # it refuses higher peaks
    assert dnsmos.rate(np.zeros(0, np.float32)) is None  # it would never return


def test_silence_and_clipping_are_shares() -> None:
    loud = (8000 * np.sin(np.arange(24000) / 5)).astype(np.int16)
    assert silence_share(np.concatenate((loud, np.zeros(24000, np.int16))), 24000) == pytest.approx(0.5)
    assert silence_share(np.zeros(0, np.int16), 24000) == 1.0
    assert clipped_share(np.array([32767, -32768, 0, 100], np.int16)) == 0.5
