"""What the 16 codes of a frame mean. They are not learned: they describe what the teacher says in these 80 ms, and how.

A learned codec of this size spends its codes on details that a small predictor cannot predict (see run 7). These codes
follow from the text: phones with their boundaries, pitch and energy. The decoder learns to make the teacher's audio of
them. It cannot look ahead, so a frame also says which phones come next.

The pitch of the teacher is adjusted so that a frame always has a whole number of quarter periods (pitch.py). The phase
at which a frame starts and ends is then one of four. A frame starts at the phase at which the one before it ends, and
its end follows from FINE alone. So the talker has to copy and to look up, but never to add, which it does not learn
(see run 8). The decoder finds the phase at the start of each slot in FINE, too, and has to turn it by what BEND says.

Every code is below 64: small tables leave more of the checkpoint to the decoder.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import paths  # noqa: F401

from oscine.audio.pcm import CODEBOOKS

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

SLOTS = 4  # of 20 ms in a frame
STEPS = 4  # of 5 ms in a slot
FRAME_STEPS = SLOTS * STEPS

# The teacher's phones; 0 is silence. Vowels with primary stress are phones of their own.
_SOUNDS = "bdfhjklmnpstvwzðŋɡɹʃʒʤʧθTəɐᵊᵻAIOWYæɑɔɛɜɪiʊuʌ"
_STRESSED = "AIOWYæɑɔɛɜɪiʊuʌ"
_OBSTRUENTS = "bdfhkpstvzðɡʃʒʤʧθT"
_NUMBERS = {name: number for number, name in enumerate((*_SOUNDS, *(f"ˈ{vowel}" for vowel in _STRESSED)), start=1)}

_NAMES = ("", *_NUMBERS)

# The teacher's phones begin every 25 ms, so their places in a frame are one of five patterns.
_PLACE_STEPS = 5
_FIRST_PLACE = 4  # in an utterance, in steps

# Which codebook holds what. Codebook 0 is the talker's, the others are the predictor's, in this order.
LAST_PHONE = 0  # at the end of the last slot
PHONES = (1, 2, 3)  # at the ends of the slots before it
LEFT = 4  # steps until the phone of the last slot ends, after this frame
NEXT, SECOND_NEXT = 5, 6  # the phones after that of the last slot
COARSE = 7  # pitch: quarter periods in the frame divided by 16 (whole periods in a slot), plus 16 times the voice
FINE = 8  # the rest of that division, times 4, plus the phase at the start of the frame in quarter periods
BEND = 9  # how much earlier or later than half-way the middle of these periods is: slope of the pitch
VOICED = 10  # a bit per slot, then two bits: the phase at the end of the frame
ENERGIES = (11, 12, 13, 14)  # of each slot
BEGINNINGS = 15  # at which of the possible places phones begin, and the pattern of these places

ORDERED = (LEFT, COARSE, BEND, *ENERGIES)  # numbers: neighbors mean nearly the same

CODES = 64  # per codebook
QUARTERS = 4  # phases at which a frame can start
SLOT_QUARTERS = SLOTS * QUARTERS  # in a frame that has a period in each slot
_LONG_LEFT = 55
BENDS_PER_PERIOD, MAX_BEND = 16, 24
_LOWEST_ENERGY, _ENERGY_STEP, MAX_ENERGY = -10.0, 0.4, 47


def phone_number(symbol: str, *, stressed: bool) -> int:
    """Below 64. 0 for silence, and for symbols that English does not have."""
    return _NUMBERS.get(f"ˈ{symbol}" if stressed else symbol, _NUMBERS.get(symbol, 0))


def phone_name(number: int) -> str:
    """The reverse of phone_number, with a mark before a stressed vowel; nothing for silence."""
    return _NAMES[number]


def obstruent_numbers() -> list[int]:
    """Numbers of the phones that are noises and bursts: short, and easily mistaken for each other."""
    return [_NUMBERS[symbol] for symbol in _OBSTRUENTS]


def describe(
    phones: Bytes, quarters: npt.NDArray[np.int64], bends: Floats, voiced: npt.NDArray[np.bool_], energies: Floats,
    voice: int,
) -> Bytes:  # fmt: skip
    """phones [frames * 16], quarters and bends [frames], voiced and energies [frames * 4] -> codes [frames, 16]."""
    frames = len(quarters)
    codes = np.zeros((frames, CODEBOOKS), np.uint8)
    ends = phones.reshape(frames, SLOTS, STEPS)[..., -1]
    codes[:, LAST_PHONE] = ends[:, -1]
    codes[:, PHONES] = ends[:, :-1]
    codes[:, LEFT], codes[:, NEXT], codes[:, SECOND_NEXT] = _ahead(phones)
    starts = (np.cumsum(quarters) - quarters) % QUARTERS
    codes[:, COARSE] = np.clip(quarters // SLOT_QUARTERS, 0, 15) + 16 * voice
    codes[:, FINE] = quarters % SLOT_QUARTERS * QUARTERS + starts
    codes[:, BEND] = np.round(bends * BENDS_PER_PERIOD) + MAX_BEND
    bits = voiced.reshape(frames, SLOTS) @ (1 << np.arange(SLOTS))
    codes[:, VOICED] = bits * QUARTERS + (starts + quarters) % QUARTERS
    levels = np.round((energies - _LOWEST_ENERGY) / _ENERGY_STEP)
    codes[:, ENERGIES] = np.clip(levels, 0, MAX_ENERGY).reshape(frames, SLOTS)
    codes[:, BEGINNINGS] = _beginnings(phones)
    return codes


def with_silence(codes: Bytes, frames: int) -> Bytes:
    """Puts silent frames before an utterance. They do not tell the phones that come: the text may not be there yet.
    `frames` is a multiple of five, so that the places of phones continue in their pattern."""
    assert frames % _PLACE_STEPS == 0, frames
    silent = np.zeros((frames, CODEBOOKS), np.uint8)
    left = FRAME_STEPS * np.arange(frames - 1, -1, -1) + _onset(codes)
    silent[:, LEFT] = np.minimum(left, _LONG_LEFT + left % _PLACE_STEPS)
    silent[:, COARSE] = codes[0, COARSE]  # FINE and VOICED stay 0: whole periods, from phase 0, where utterances begin
    silent[:, BEND] = MAX_BEND
    silent[:, ENERGIES] = codes[0, ENERGIES].min()
    silent[:, BEGINNINGS] = _beginnings(np.zeros(frames * FRAME_STEPS, np.uint8))
    return np.concatenate((silent, codes))


def _onset(codes: Bytes) -> int:
    """The step at which the first phone begins."""
    for frame, code in enumerate(codes[:, BEGINNINGS].tolist()):
        first, bits = max(0, code // 8 - 1), code % 8 if code >= 16 else code
        if bits:
            return FRAME_STEPS * frame + first + _PLACE_STEPS * ((bits & -bits).bit_length() - 1)
    return FRAME_STEPS * len(codes)


def _ahead(phones: Bytes) -> tuple[npt.NDArray[np.int64], Bytes, Bytes]:
    """Returns for each frame's last step how many steps its phone goes on after the frame, and the two phones after it.
    A long time is shortened by whole places, so that it always tells the places of the next frame."""
    starts = np.flatnonzero(np.diff(phones, prepend=phones[0] ^ 1))  # of runs of equal phones
    last_end = len(phones) + (_FIRST_PLACE - len(phones)) % _PLACE_STEPS
    ends = np.append(starts[1:], last_end)
    runs = np.append(phones[starts], (0, 0))
    last = np.arange(FRAME_STEPS - 1, len(phones), FRAME_STEPS)
    run = np.searchsorted(starts, last, side="right") - 1
    left = ends[run] - last - 1
    return np.minimum(left, _LONG_LEFT + left % _PLACE_STEPS), runs[run + 1], runs[run + 2]


def _beginnings(phones: Bytes) -> Bytes:
    """[frames]. There are four places in the first pattern, and three in the others."""
    begins = np.diff(phones, prepend=phones[0]) != 0
    place = np.arange(len(phones))
    assert not (begins & (place % _PLACE_STEPS != _FIRST_PLACE)).any(), "a phone begins between two places"
    frames = begins.reshape(-1, FRAME_STEPS)
    first = (_FIRST_PLACE - FRAME_STEPS * np.arange(len(frames))) % _PLACE_STEPS
    places = first[:, None] + _PLACE_STEPS * np.arange(4)
    bits = np.take_along_axis(np.pad(frames, ((0, 0), (0, _PLACE_STEPS))), places, 1) @ (1 << np.arange(4))
    return np.where(first == 0, bits, 8 + 8 * first + bits).astype(np.uint8)
