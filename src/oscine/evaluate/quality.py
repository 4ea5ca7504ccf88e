"""How a recording sounds, whatever it says: DNSMOS where it is installed, and two simple warnings."""

from __future__ import annotations

import contextlib
import io
from importlib import metadata

import numpy as np
import numpy.typing as npt

from oscine.bench.metrics import ONSET_DBFS, WINDOW_S
from oscine.evaluate.optional import optional
from oscine.evaluate.recognizer import RATE_HZ
from oscine.types import Samples

Pcm = npt.NDArray[np.int16]

_MIN_SAMPLES = RATE_HZ // 10  # shorter ones it would repeat for ever, or judge by one breath


class Dnsmos:
    """Microsoft's DNSMOS P.835: opinions from 1 to 5 on speech, background and both, guessed by a network."""

    def __init__(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self._library = optional("speechmos.dnsmos", "DNSMOS (speechmos)", "quality")
        self.about = {"name": "DNSMOS, speechmos", "version": _version("speechmos")}

    def rate(self, sound: Samples) -> dict[str, float] | None:
        """None where there is too little to judge."""
        if len(sound) < _MIN_SAMPLES:
            return None
        opinions = self._library.run(np.clip(sound, -1.0, 1.0), sr=RATE_HZ)  # refuses what resampling lifts above 1
        return {name: float(opinions[f"{name}_mos"]) for name in ("ovrl", "sig", "bak", "p808")}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def silence_share(pcm: Pcm, rate_hz: int) -> float:
    """Of its windows of 20 ms, those that a listener would take for silence (docs/metrics.md: onset)."""
    window = max(1, round(WINDOW_S * rate_hz))
    whole = len(pcm) // window * window
    if not whole:
        return 1.0
    loud = pcm[:whole].reshape(-1, window).astype(np.float64).var(axis=1) >= (32768 * 10 ** (ONSET_DBFS / 20)) ** 2
    return 1.0 - float(loud.mean())


def clipped_share(pcm: Pcm) -> float:
    """Of its samples, those at full scale."""
    return float((np.abs(pcm.astype(np.int32)) >= 32767).mean()) if len(pcm) else 0.0
