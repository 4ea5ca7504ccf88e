"""DNSMOS, overall, with the weights of speechmos. speechmos itself gives the same score, but takes much longer on a
busy machine: it also computes another score (P.808), and its threads wait in loops."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

RATE_HZ = 16000
_WINDOW = int(9.01 * RATE_HZ)
_OVERALL = np.poly1d([-0.06766283, 1.11546468, 0.04602535])  # of the network's output, as in speechmos


class DnsmosJudge:
    def __init__(self) -> None:
        import onnxruntime

        spec = find_spec("speechmos")
        assert spec is not None and spec.origin is not None, "speechmos is not installed"
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        weights = Path(spec.origin).parent / "dnsmos_models" / "sig_bak_ovr.onnx"
        self._session = onnxruntime.InferenceSession(str(weights), options, providers=["CPUExecutionProvider"])

    def rate(self, samples: npt.NDArray[np.float32]) -> float:
        """The mean over windows, one per second. Short recordings are repeated."""
        samples = samples.clip(-1, 1)
        while len(samples) < _WINDOW:
            samples = np.append(samples, samples)
        count = int(len(samples) // RATE_HZ - _WINDOW / RATE_HZ) + 1
        windows = [samples[number * RATE_HZ : number * RATE_HZ + _WINDOW] for number in range(count)]
        outputs = [self._session.run(None, {"input_1": one[None]})[0][0] for one in windows if len(one) == _WINDOW]
        return float(np.mean([_OVERALL(overall) for _, _, overall in outputs]))
