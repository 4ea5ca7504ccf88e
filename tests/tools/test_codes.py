"""The codes of the demo voice's training (training/codes.py)."""

from types import ModuleType

import numpy as np
import pytest


@pytest.mark.parametrize("onset", [4, 9, 19, 84])
def test_silence_before_an_utterance_has_the_codes_of_the_teachers_silence(codes: ModuleType, onset: int) -> None:
    frames, lead = 8, 5
    phones = np.zeros(frames * codes.FRAME_STEPS, np.uint8)
    phones[onset:], phones[onset + 15 :], phones[-9:] = 3, 7, 0
    quarters, energies = np.full(frames, 37), np.linspace(-9, -2, frames * codes.SLOTS, dtype=np.float32)
    voiced, bends = energies > -5, np.zeros(frames, np.float32)
    alone = codes.describe(phones, quarters, bends, voiced, energies, 1)
    longer = codes.describe(
        np.pad(phones, (lead * codes.FRAME_STEPS, 0)), np.append([32] * lead, quarters), np.pad(bends, (lead, 0)),
        np.pad(voiced, (lead * codes.SLOTS, 0)), np.append([energies[0]] * lead * codes.SLOTS, energies), 1,
    )  # fmt: skip
    longer[:lead, (codes.NEXT, codes.SECOND_NEXT)] = 0  # not known yet
    assert (codes.with_silence(alone, lead) == longer).all()
