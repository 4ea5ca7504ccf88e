"""Flags on scripted transcripts, and figures over a set."""

import dataclasses

import pytest

from oscine_eval.recording import Recording
from oscine_eval.score import FIGURES, Score, score_all, shown, shown_range, totals

FIGURE = {figure.key: figure for figure in FIGURES}


def recording(text: str, transcript: str | None = None, number: int = 0, **facts) -> Recording:
    """Spoken at 15 letters a second, by default."""
    usual = {"file": f"{number:03d}.wav", "audio_s": len(text) / 15, "language": "en", "take": 0, "seed": number}
    return Recording(
        number=number, text=text, transcript=text if transcript is None else transcript, **{**usual, **facts}
    )


def score(text: str, transcript: str | None = None, **facts) -> Score:
    return score_all([recording(text, transcript, **facts)])[0]


@pytest.mark.parametrize(
    ("text", "transcript", "flags"),
    [
        ("The door is open now.", "the door is open now", ()),
        ("The door is open now.", "the door is open", ()),  # one word may be the recognizer's error
        ("The door is open now.", "the door is", ("truncated",)),
        ("The door is open now.", "open now", ("truncated",)),
        ("Hello.", "", ("truncated",)),
        ("The door is open now.", "the door the door is open now", ("repeated",)),
        ("The door is open now.", "the door is open now and then", ("repeated",)),
        ("The door is open now.", "so the door is open now", ()),
        ("The door is open.", "the door the door is", ("repeated",)),
    ],
)
def test_deletions_and_insertions_at_the_ends_are_flagged(text: str, transcript: str, flags: tuple[str, ...]) -> None:
    assert score(text, transcript).flags == flags


@pytest.mark.parametrize(
    ("transcript", "flags"),
    [
        ("门已经开", ()),
        ("门已经", ()),
        ("门已", ("truncated",)),
        ("门已经开了了", ()),
        ("门已经门已经开了", ("repeated",)),
    ],
)
def test_two_characters_at_an_end_are_tolerated(transcript: str, flags: tuple[str, ...]) -> None:
    found = score("门已经开了。", transcript, language="zh")
    assert (found.unit, found.flags) == ("character", flags)


@pytest.mark.parametrize(("reason", "flags"), [("stop", ()), ("length", ("runaway",)), ("runaway", ("runaway",))])
def test_speech_without_an_end_of_its_own_is_a_runaway(reason: str, flags: tuple[str, ...]) -> None:
    assert score("The door is open now.", finish_reason=reason).flags == flags


def test_a_recording_much_longer_than_the_others_is_a_runaway() -> None:
    text = "The parcel left our warehouse this morning."
    usual_s = len(text) / 15  # 2.9 s
    lengths = [usual_s, usual_s, usual_s, 2 * usual_s, 4 * usual_s]
    scores = score_all([recording(text, number=n, audio_s=length) for n, length in enumerate(lengths)])
    assert ["runaway" in one.flags for one in scores] == [False, False, False, False, True]


def test_a_short_text_may_take_two_seconds_longer() -> None:
    others = [recording("The parcel left our warehouse this morning.", number=n) for n in range(3)]
    scores = score_all([*others, recording("Yes.", audio_s=1.9)])  # ten times the usual pace
    assert scores[-1].flags == ()


def test_a_set_of_runaways_does_not_define_the_usual_pace() -> None:
    assert all("runaway" in one.flags for one in score_all([recording("Your table is ready.", audio_s=40.0)] * 3))


def test_chinese_characters_take_longer_than_english_letters() -> None:
    english = [recording("The parcel left our warehouse this morning.", number=n) for n in range(5)]
    chinese = recording("您的包裹今天早上已经发出，预计星期四之前送到。", language="zh", audio_s=5.5)
    assert score_all([*english, chinese])[-1].flags == ()


def test_silence_and_clipping_are_warnings() -> None:
    assert score("Yes.", silence_share=0.7, clipped_share=0.01).warnings == (
        "silent for 70%",
        "clipped: 1.0% of samples at full scale",
    )
    assert score("Yes.", silence_share=0.4, clipped_share=0.0001).warnings == ()


def test_the_rate_of_a_set_is_all_errors_over_all_words() -> None:
    """It is not the mean of the recordings' rates."""
    set_ = [recording("The parcel left our warehouse early this morning.", number=0), recording("No.", "yes", number=1)]
    found = totals(set_, score_all(set_))
    assert found["wer"] is not None
    assert (found["wer"]["value"], found["wer"]["count"], found["wer"]["of"]) == (pytest.approx(1 / 9), 1, 9)
    assert found["cer"] is None


def test_words_and_characters_are_counted_apart() -> None:
    set_ = [recording("Yes it is.", "yes"), recording("谢谢，就这些。", "谢谢就这", language="zh", number=1)]
    found = totals(set_, score_all(set_))
    assert found["wer"] is not None and found["wer"]["of"] == 3
    assert found["cer"] is not None and (found["cer"]["count"], found["cer"]["of"]) == (1, 5)


def test_unmeasured_figures_are_none_instead_of_zero() -> None:
    untranscribed = [dataclasses.replace(recording("Yes."), transcript=None)]
    found = totals(untranscribed, score_all(untranscribed))
    assert [key for key, total in found.items() if total is not None] == ["runaway", "failed", "audio_s"]


def test_a_failed_request_counts_in_no_other_figure() -> None:
    failed = recording("No.", number=1, file=None, failure="http_500: oops", audio_s=0.0)
    set_ = [recording("Yes."), dataclasses.replace(failed, transcript=None)]
    found = totals(set_, score_all(set_))
    assert found["failed"] is not None and found["failed"]["value"] == 0.5
    assert found["wer"] is not None and found["wer"]["of"] == 1
    assert found["audio_s"] is not None and found["audio_s"]["of"] == 1


def test_an_unseen_flag_has_an_interval_up_to_three_over_n() -> None:
    set_ = [recording(f"Number {n}.", number=n) for n in range(30)]
    found = totals(set_, score_all(set_))["truncated"]
    assert found is not None and (found["low"], found["high"]) == (0.0, pytest.approx(0.1))


def test_a_flag_on_every_text_has_an_interval_down_to_one_minus_three_over_n() -> None:
    set_ = [recording(f"Number {n}.", number=n, finish_reason="length") for n in range(30)]
    found = totals(set_, score_all(set_))["runaway"]
    assert found is not None and (found["low"], found["high"]) == (pytest.approx(0.9), 1.0)


@pytest.mark.parametrize("takes", [1, 2])
def test_a_set_without_errors_has_an_interval_up_to_three_errors_per_take(takes: int) -> None:
    """Takes are not texts."""
    set_ = [recording(f"This is number {n}.", number=n, take=take) for n in range(30) for take in range(takes)]
    found = totals(set_, score_all(set_))["wer"]
    assert found is not None and found["value"] == 0.0
    assert (found["low"], found["high"]) == (0.0, pytest.approx(takes * 3 / found["of"]))


def test_equal_lengths_have_no_spread() -> None:
    set_ = [recording(f"Number {n}.", number=n, audio_s=2.0) for n in range(9)]
    found = totals(set_, score_all(set_))["audio_s"]
    assert found is not None and (found["low"], found["high"]) == (2.0, 2.0)


def test_dnsmos_and_similarity_are_means() -> None:
    set_ = [recording("Yes.", dnsmos={"ovrl": 3.0}, similarity=0.8), recording("No.", dnsmos={"ovrl": 4.0}, number=1)]
    found = totals(set_, score_all(set_))
    assert found["dnsmos"] is not None and found["dnsmos"]["value"] == 3.5
    assert found["similarity"] is not None and (found["similarity"]["value"], found["similarity"]["of"]) == (0.8, 1)


def test_shares_are_shown_as_percent_and_their_differences_as_points() -> None:
    assert shown(FIGURE["wer"], 0.0312) == "3.1 %"
    assert shown_range(FIGURE["wer"], -0.01, 0.025, signed=True) == "-1.0 to +2.5 points"
    assert shown_range(FIGURE["dnsmos"], 3.0, 3.251) == "3.00 to 3.25"
