from __future__ import annotations

import random

import pytest

from oscine.engine.loop import Slots


def test_a_slot_has_one_owner_at_a_time() -> None:
    slots, taken, rng = Slots(5), set[int](), random.Random(1)
    for _ in range(500):
        if slots.free and (not taken or rng.random() < 0.5):
            slot = slots.take()
            assert slot not in taken and slot == min(set(range(5)) - taken)
            taken.add(slot)
        else:
            slots.give(slot := rng.choice(sorted(taken)))
            taken.remove(slot)
        assert (slots.taken, slots.free) == (len(taken), 5 - len(taken))


def test_misuse_is_an_assertion_error() -> None:
    slots = Slots(1)
    with pytest.raises(AssertionError):
        slots.give(0)
    slots.take()
    with pytest.raises(AssertionError):
        slots.take()
    with pytest.raises(AssertionError):
        slots.give(1)
