"""Measures audio quality independent of the words: DNSMOS if it is installed, silence and clipping."""

from __future__ import annotations

import contextlib
import io
from importlib import metadata
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from oscine.audio.pcm import Samples, amplitude
from oscine_bench.metrics import ONSET_DBFS, WINDOW_S
from oscine_eval.optional import import_for_transcriber
from oscine_eval.recognizer import RATE_HZ

Pcm = npt.NDArray[np.int16]

_MIN_SAMPLES = RATE_HZ // 10  # speechmos repeats shorter audio, without end if it is empty


class DnsmosScores(TypedDict):
    """Predicted mean opinion scores from 1 to 5: overall, speech, background (P.835) and overall (P.808)."""

    ovrl: float
    sig: float
    bak: float
    p808: float


class Dnsmos:
    """Microsoft's DNSMOS, in the package speechmos."""

    def __init__(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self._library = import_for_transcriber("speechmos.dnsmos", "DNSMOS (speechmos)", "quality")
        self.about = {"name": "DNSMOS, speechmos", "version": _version("speechmos")}

    def rate(self, audio: Samples) -> DnsmosScores | None:
        """Returns None for audio too short to rate."""
        if len(audio) < _MIN_SAMPLES:
            return None
        scores = self._library.run(np.clip(audio, -1.0, 1.0), sr=RATE_HZ)  # it refuses resampled peaks above 1
        ovrl, sig, bak, p808 = (float(scores[f"{name}_mos"]) for name in ("ovrl", "sig", "bak", "p808"))
        return {"ovrl": ovrl, "sig": sig, "bak": bak, "p808": p808}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def silence_share(pcm: Pcm, rate_hz: int) -> float:
    """Returns the share of windows of 20 ms below the level of the onset detector (docs/metrics.md)."""
    window = max(1, round(WINDOW_S * rate_hz))
    whole = len(pcm) // window * window
    if not whole:
        return 1.0
    loud = pcm[:whole].reshape(-1, window).astype(np.float64).var(axis=1) >= amplitude(ONSET_DBFS) ** 2
    return 1.0 - float(loud.mean())


def clipped_share(pcm: Pcm) -> float:
    """Returns the share of samples at full scale."""
    return float((np.abs(pcm.astype(np.int32)) >= 32767).mean()) if len(pcm) else 0.0
