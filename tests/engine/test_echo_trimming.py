"""An echo of the reference is trimmed, and nothing else is."""

import numpy as np
import pytest

from oscine.audio.pcm import CODEBOOKS, Codes, Pcm
from oscine.config import EchoConfig
from oscine.engine.trimming import EchoDetector, EchoTrimmer, begins_like_end

CONFIG = EchoConfig()
SAMPLES, RATE_HZ = 1920, 24_000
SPEECH, SILENCE = -20.0, -70.0  # dBFS
rng = np.random.default_rng(5)
REFERENCE = rng.integers(0, 2048, 100)
NEW = rng.integers(0, 2048, 60)


def codes(first: np.ndarray) -> Codes:
    filled = np.zeros((len(first), CODEBOOKS), np.int64)
    filled[:, 0] = first
    return filled


def frame(number: int) -> Pcm:
    return np.full(SAMPLES, 1000 + number, np.int16)


def spoken(first: np.ndarray, levels_dbfs: list[float] | None = None, config: EchoConfig = CONFIG) -> EchoTrimmer:
    """The trimmer after all frames; `.sent` are the numbers of the frames that it let go."""
    trimmer = EchoTrimmer(config, codes(REFERENCE), RATE_HZ)
    sent: list[Pcm] = []
    for number, code in enumerate(first):
        sent += trimmer.push(frame(number), int(code), levels_dbfs[number] if levels_dbfs else SPEECH)
    sent += trimmer.finish()
    trimmer.sent = [int(pcm[-1]) - 1000 for pcm in sent]  # type: ignore[attr-defined]
    return trimmer


def sent(trimmer: EchoTrimmer) -> list[int]:
    numbers: list[int] = trimmer.sent  # type: ignore[attr-defined]
    return numbers


def heard_again(frames: int, every: int = 0) -> np.ndarray:
    """The end of the reference, said again: every n-th code is another one."""
    again = REFERENCE[-frames:].copy()
    if every:
        again[::every] = 5000 + np.arange(len(again[::every]))
    return again


@pytest.mark.parametrize("frames", [8, 12, 24, 30])
def test_an_exact_echo_is_trimmed_to_the_frame(frames: int) -> None:
    trimmer = spoken(np.concatenate([heard_again(frames), NEW]))
    assert trimmer.echo_frames == frames
    assert sent(trimmer) == list(range(frames, frames + len(NEW)))
    assert trimmer.echo_s == pytest.approx(frames / 12.5)


@pytest.mark.parametrize("every", [2, 3, 5])
def test_an_echo_that_agrees_in_half_of_its_codes_or_more_is_trimmed(every: int) -> None:
    trimmer = spoken(np.concatenate([heard_again(24, every), NEW]))
    assert trimmer.echo_frames == 24
    assert sent(trimmer) == list(range(24, 24 + len(NEW)))


def test_an_echo_may_be_slower_than_the_reference() -> None:
    slow = np.repeat(heard_again(16), [2 if number % 3 == 0 else 1 for number in range(16)])
    assert abs(spoken(np.concatenate([slow, NEW])).echo_frames - len(slow)) <= 1


def test_the_cut_is_made_where_it_is_quiet() -> None:
    reference_ends_in_silence = np.concatenate([heard_again(20)[:-4], NEW])
    levels = [SPEECH] * 16 + [SPEECH, SILENCE] + [SPEECH] * (len(NEW) - 2)
    assert spoken(reference_ends_in_silence, levels).echo_frames == 17


@pytest.mark.parametrize("seed", range(30))
def test_other_words_pass_untouched(seed: int) -> None:
    """The vocabulary is as small as that of the demo voice."""
    draw = np.random.default_rng(seed)
    trimmer = EchoTrimmer(CONFIG, codes(draw.integers(0, 240, 100)), RATE_HZ)
    let_go = [pcm for number in range(60) for pcm in trimmer.push(frame(number), int(draw.integers(0, 240)), SPEECH)]
    assert trimmer.echo_frames == 0
    assert b"".join(pcm.tobytes() for pcm in let_go) == b"".join(frame(number).tobytes() for number in range(60))


def test_other_words_are_held_back_for_the_probe_only() -> None:
    trimmer = EchoTrimmer(CONFIG, codes(REFERENCE), RATE_HZ)
    held = [len(trimmer.push(frame(number), int(code), SPEECH)) for number, code in enumerate(NEW)]
    assert held[: CONFIG.probe_frames] == [0] * (CONFIG.probe_frames - 1) + [CONFIG.probe_frames]
    assert set(held[CONFIG.probe_frames :]) == {1}


def test_words_from_the_middle_of_the_reference_are_no_echo() -> None:
    assert spoken(np.concatenate([REFERENCE[-60:-30], NEW])).echo_frames == 0


def test_an_echo_later_in_the_speech_is_not_looked_for() -> None:
    assert spoken(np.concatenate([NEW, heard_again(24)])).echo_frames == 0


def test_silence_agrees_with_nothing() -> None:
    first = np.concatenate([heard_again(24), NEW])
    assert spoken(first, [SILENCE] * 24 + [SPEECH] * len(NEW)).echo_frames == 0


def test_speech_that_ends_early_is_sent_completely() -> None:
    assert sent(spoken(NEW[:5])) == [0, 1, 2, 3, 4]
    short = spoken(np.concatenate([heard_again(12), NEW[:2]]))
    assert (short.echo_frames, sent(short)) == (12, [12, 13])
    only = spoken(heard_again(12))  # better the echo than nothing at all
    assert (only.echo_frames, sent(only)) == (0, list(range(12)))


def test_no_frame_is_held_longer_than_the_maximum() -> None:
    config = EchoConfig(min_agreement=100, max_frames=20)
    trimmer = EchoTrimmer(config, codes(REFERENCE), RATE_HZ)
    held = [len(trimmer.push(frame(number), int(code), SPEECH)) for number, code in enumerate(heard_again(30))]
    assert held[:20] == [0] * 19 + [20]


def test_what_follows_an_echo_fades_in() -> None:
    trimmer = EchoTrimmer(CONFIG, codes(REFERENCE), RATE_HZ)
    let_go: list[Pcm] = []
    for number, code in enumerate(np.concatenate([heard_again(16), NEW])):
        let_go += trimmer.push(frame(number), int(code), SPEECH)
    assert let_go[0][0] == 0 and let_go[0][120] == let_go[0][-1] == 1016


def test_the_shortest_reference_is_enough() -> None:
    assert EchoDetector(CONFIG, [7]).push(7, audible=True) is None


@pytest.mark.parametrize(
    ("text", "transcript", "expected"),
    [
        ("Good morning, all of you.", "the services that we want to build", False),
        ("Build it again.", "the services that we want to build.", True),
        ("That is it.", "the services that we want to build.", True),
        ("Thank you!", "I said thank you", True),
        ("The end.", "the first word of a long transcript does not matter here at all today", False),
        ("早上好。", "我们今天去公园散步吧", False),
        ("散步很好。", "我们今天去公园散步吧", True),
        ("...", "anything", True),
    ],
)
def test_a_text_that_begins_with_the_last_words_is_not_searched(text: str, transcript: str, expected: bool) -> None:
    assert begins_like_end(text, transcript) is expected
