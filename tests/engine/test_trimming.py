"""An echo of the reference and long silences are trimmed, and nothing else is."""

import random

import numpy as np
import pytest

from oscine.audio.pcm import CODEBOOKS, Codes, Pcm
from oscine.config import EchoConfig, TrimConfig
from oscine.engine.trimming import EchoDetector, EchoTrimmer, SilenceTrimmer, begins_like_end

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


# --- silence ---

FRAME = 1920
KEEP = 240  # 10 ms


def trim(pcm: np.ndarray, pieces: list[int], config: TrimConfig = TrimConfig()) -> np.ndarray:  # noqa: B008
    trimmer = SilenceTrimmer(config, RATE_HZ, FRAME, enabled=config.enabled)
    out = [trimmer.push(piece) for piece in np.split(pcm, np.cumsum(pieces)[:-1])]
    out.append(trimmer.finish())
    trimmed = np.concatenate(out)
    assert len(trimmed) + trimmer.dropped_samples == len(pcm)
    return trimmed


def speech_after(samples: int, frames: int = 12, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    pcm = rng.integers(-20, 21, frames * FRAME).astype(np.int16)  # below -55 dBFS
    pcm[samples:] = rng.integers(-8000, 8001, len(pcm) - samples)
    pcm[samples : samples + 1] = 5000
    return pcm


@pytest.mark.parametrize("onset", [0, 1, 100, KEEP, KEEP + 1, FRAME - 1, FRAME, FRAME + 77, 5 * FRAME + 3])
def test_audio_begins_ten_milliseconds_before_the_onset(onset: int) -> None:
    pcm = speech_after(onset)
    np.testing.assert_array_equal(trim(pcm, [FRAME] * 12), pcm[max(0, onset - KEEP) :])


def test_the_result_does_not_depend_on_how_frames_arrive() -> None:
    rng = random.Random(2)
    for seed in range(20):
        pcm = speech_after(rng.randrange(9 * FRAME), seed=seed)
        pieces = [rng.randint(1, 3) for _ in range(12)]
        pieces = [FRAME * count for count in pieces]
        while sum(pieces) > len(pcm):
            pieces.pop()
        pieces.append(len(pcm) - sum(pieces))
        np.testing.assert_array_equal(trim(pcm, pieces), trim(pcm, [FRAME] * 12))


def test_no_more_than_the_limit_is_dropped() -> None:
    pcm = np.zeros(12 * FRAME, np.int16)
    assert len(trim(pcm, [FRAME] * 12, TrimConfig(max_frames=3))) == 9 * FRAME
    assert len(trim(pcm, [FRAME] * 12, TrimConfig(max_frames=0))) == 12 * FRAME


def test_a_silent_stream_keeps_its_last_ten_milliseconds() -> None:
    assert len(trim(np.zeros(2 * FRAME, np.int16), [FRAME] * 2)) == KEEP


def test_trimming_can_be_disabled() -> None:
    pcm = speech_after(3 * FRAME)
    np.testing.assert_array_equal(trim(pcm, [FRAME] * 12, TrimConfig(enabled=False)), pcm)


def test_later_silence_is_left_alone() -> None:
    pcm = np.zeros(6 * FRAME, np.int16)
    pcm[10], pcm[-1] = 9000, 9000
    np.testing.assert_array_equal(trim(pcm, [FRAME] * 6), pcm)


def test_the_lowest_sample_value_is_audible() -> None:
    pcm = np.zeros(FRAME, np.int16)
    pcm[1000] = -32768
    np.testing.assert_array_equal(trim(pcm, [FRAME]), pcm[1000 - KEEP :])
