"""What the 16 codes of a frame mean. They are not learned: they describe what the teacher says in these 80 ms, and how.

A learned codec of this size spends its codes on details that a small predictor cannot predict (see run 7). These codes
follow from the text: phones with their boundaries, pitch and energy. The decoder learns to make the teacher's audio of
them. It cannot look ahead, so a frame also says which phones come next.

The pitch of the teacher is adjusted so that a frame always has a whole number of quarter periods (pitch.py). The phase
at which a frame starts and ends is then one of four. A frame starts at the phase at which the one before it ends, and
its end follows from its QUARTER alone. So the model has to copy and to look up, but never to add, which it does not
learn (see run 8).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import paths  # noqa: F401

from oscine.frames import CODEBOOKS

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

SLOTS = 4  # of 20 ms in a frame
STEPS = 4  # of 5 ms in a slot
FRAME_STEPS = SLOTS * STEPS

# The teacher's phones; 0 is silence. Vowels with primary stress are phones of their own.
_SOUNDS = "bdfhjklmnpstvwzðŋɡɹʃʒʤʧθTəɐᵊᵻAIOWYæɑɔɛɜɪiʊuʌ"
_STRESSED = "AIOWYæɑɔɛɜɪiʊuʌ"
_NUMBERS = {name: number for number, name in enumerate((*_SOUNDS, *(f"ˈ{vowel}" for vowel in _STRESSED)), start=1)}

# Which codebook holds what. Codebook 0 is the talker's, the others are the predictor's, in this order. The phone of a
# slot is that at its end, times 4, plus the number of steps before it begins: boundaries are exact to 5 ms.
LAST_PHONE = 0  # of the last slot
PHONES = (1, 2, 3)  # of the slots before it
LEFT = 4  # steps until the phone of the last slot ends, after this frame
NEXT, SECOND_NEXT = 5, 6  # the phones after that of the last slot
PERIODS = 7  # whole periods in the frame: pitch
QUARTER = 8  # quarter periods beyond them, times 4, plus the phase at the start of the frame, in quarter periods
BEND = 9  # how much earlier or later than half-way the middle of these periods is: slope of the pitch
VOICED = 10  # a bit per slot, and the number of the voice above them
ENERGIES = (11, 12, 13, 14)  # of each slot
END = 15  # the phase at the end of the frame

ORDERED = (LEFT, PERIODS, BEND, *ENERGIES)  # numbers: neighbors mean nearly the same

QUARTERS = 4  # phases at which a frame can start
_MAX_LEFT = 63
BENDS_PER_PERIOD, MAX_BEND = 16, 24
_LOWEST_ENERGY, _ENERGY_STEP, _MAX_ENERGY = -10.0, 0.4, 47


def phone_number(symbol: str, *, stressed: bool) -> int:
    """Below 64. 0 for silence, and for symbols that English does not have."""
    return _NUMBERS.get(f"ˈ{symbol}" if stressed else symbol, _NUMBERS.get(symbol, 0))


def describe(
    phones: Bytes, quarters: npt.NDArray[np.int64], bends: Floats, voiced: npt.NDArray[np.bool_], energies: Floats,
    voice: int,
) -> Bytes:  # fmt: skip
    """phones [frames * 16], quarters and bends [frames], voiced and energies [frames * 4] -> codes [frames, 16]."""
    frames = len(quarters)
    codes = np.zeros((frames, CODEBOOKS), np.uint8)
    steps = phones.reshape(frames, SLOTS, STEPS)
    ends = steps[..., -1]
    slots = ends * STEPS + (steps != ends[..., None]).sum(-1)
    codes[:, LAST_PHONE] = slots[:, -1]
    codes[:, PHONES] = slots[:, :-1]
    codes[:, LEFT], codes[:, NEXT], codes[:, SECOND_NEXT] = _ahead(phones)
    starts = (np.cumsum(quarters) - quarters) % QUARTERS
    codes[:, PERIODS] = np.clip(quarters // QUARTERS, 0, 255)
    codes[:, QUARTER] = quarters % QUARTERS * QUARTERS + starts
    codes[:, BEND] = np.clip(np.round(bends * BENDS_PER_PERIOD), -MAX_BEND, MAX_BEND) + MAX_BEND
    codes[:, VOICED] = voiced.reshape(frames, SLOTS) @ (1 << np.arange(SLOTS)) + (voice << SLOTS)
    levels = np.round((energies - _LOWEST_ENERGY) / _ENERGY_STEP)
    codes[:, ENERGIES] = np.clip(levels, 0, _MAX_ENERGY).reshape(frames, SLOTS)
    codes[:, END] = (starts + quarters) % QUARTERS
    return codes


def _ahead(phones: Bytes) -> tuple[npt.NDArray[np.int64], Bytes, Bytes]:
    """Of each frame's last step: how many steps its phone goes on after the frame, and the two phones after it."""
    starts = np.flatnonzero(np.diff(phones, prepend=phones[0] ^ 1))  # of runs of equal phones
    ends = np.append(starts[1:], len(phones))
    runs = np.append(phones[starts], (0, 0))
    last = np.arange(FRAME_STEPS - 1, len(phones), FRAME_STEPS)
    run = np.searchsorted(starts, last, side="right") - 1
    return np.minimum(ends[run] - last - 1, _MAX_LEFT), runs[run + 1], runs[run + 2]
