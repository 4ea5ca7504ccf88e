"""The shape of the model's output: frames of codes and samples."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FRAME_RATE_HZ = 12.5
CODEBOOKS = 16
Codes = npt.NDArray[np.int64]  # [frames, 16]
Samples = npt.NDArray[np.float32]  # mono, -1..1
