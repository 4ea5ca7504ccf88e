"""The predictor's part of a frame, by itself."""

from __future__ import annotations

from torch import Tensor

from oscine.kernels.embed import gather
from oscine.runner.cuda.decode_step import DecodeStep


def place_code_0(step: DecodeStep, codes: Tensor) -> None:
    """Stores the input rows of given codes 0, as the sampler does in a frame. Not a programmatic launch."""
    gather(step._first_table, codes[:, 0], step._narrow_x[1 : 2 * len(codes) : 2])


def predict(step: DecodeStep, slots: Tensor, codes: Tensor, failed: Tensor) -> None:
    place_code_0(step, codes)
    step.predict_codes(slots, codes, failed)
