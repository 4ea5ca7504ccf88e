"""The listening page."""

import re

from tests.evaluate.test_compare import evaluation
from tests.evaluate.test_score import recording

from oscine.evaluate.page import page
from oscine.evaluate.recording import Evaluation, Recording
from oscine.evaluate.score import mark_all, totals


def complete(recordings: list[Recording], name: str = "set") -> Evaluation:
    made = evaluation(recordings, name)
    result = {**made.result, "date": "today", "command": "oscine eval run <here>", "versions": {"oscine": "1"}}
    known = Evaluation(made.folder, result, made.recordings)
    return known.knowing(totals=totals(recordings, mark_all(recordings)))


def written(recordings: list[Recording], name: str = "set") -> str:
    return page(complete(recordings, name), mark_all(recordings))


def test_every_recording_is_there_and_the_worst_come_first() -> None:
    html = written(
        [
            recording("The first text is fine.", number=0),
            recording("The second text has an error.", "The second test has an error.", number=1),
            recording("The third text is cut off here.", "The third text is", number=2),
            recording("The fourth text failed.", number=3, file=None, failure="http_500: oops"),
            recording("The fifth text fails in two ways.", "The fifth", number=4, finish_reason="runaway"),
        ]
    )
    assert re.findall(r'<article id="r(\d+)">', html) == ["003", "004", "002", "001", "000"]
    assert re.findall(r'<audio [^>]*src="([^"]+)"', html) == ["004.wav", "002.wav", "001.wav", "000.wav"]
    assert "http_500: oops" in html and "ended by runaway" in html and "WER 17% (1 of 6)" in html
    assert "<del>text</del><ins>test</ins>" in html


def test_nothing_that_was_said_becomes_markup() -> None:
    html = written([recording("<b>bold</b> & 'quoted'", "<script>alert(1)</script>")], "<i>name</i>")
    assert "<script>" not in html and "<b>" not in html and "<i>" not in html
    assert "&lt;script&gt;" in html and "&lt;b&gt;bold&lt;/b&gt; &amp; &#x27;quoted&#x27;" in html


def test_nothing_that_a_server_or_a_machine_told_becomes_markup() -> None:
    bad = "<u>\"&'"
    told = recording(bad, bad, failure=bad, finish_reason=bad, file=f"{bad}.wav", dnsmos={bad: 1.0, "ovrl": 1.0})
    made = complete([told], bad)
    figures = made.result["figures"]
    made = made.knowing(
        ears={**figures["ears"], "recogniser": {"name": bad}, "without_dnsmos": bad},
        target={"preset": bad, "served": [bad], "fields": {}},
        workload={"name": bad, "seed": bad},
    )
    given = dict.fromkeys(("machine", "commit", "date", "command"), bad) | {"versions": {"oscine": bad}}
    html = page(Evaluation(made.folder, {**made.result, **given}, made.recordings), mark_all([told]))
    assert "<u>" not in html and bad not in html and html.count("&lt;u&gt;&quot;&amp;&#x27;") > 12


def test_a_seed_that_was_not_sent_is_not_shown_as_one() -> None:
    html = written([recording("Hello there.", seed=None)])
    assert "a seed of the server&#x27;s own" in html and "no seeds sent" in html
    assert "None" not in html and "seed 0" not in html
    assert "seed 7" in written([recording("Hello there.", seed=7)])


def test_the_page_needs_nothing_but_its_recordings() -> None:
    html = written([recording("Hello there.")])
    assert not re.findall(r"https?://|<script|<link|@import", html)
    assert "prefers-color-scheme:dark" in html


def test_a_page_without_scores_still_plays() -> None:
    unheard = Recording(number=0, take=0, text="Hello.", seed=1, language="en", file="000.wav", audio_s=1.0)
    made = complete([unheard]).knowing(ears=None)
    html = page(made, mark_all([unheard]))
    assert "not scored yet" in html and 'src="000.wav"' in html and "WER" not in html
