"""The HTML page."""

import re

from oscine_eval.recording import Evaluation, Recording
from oscine_eval.report import html as render
from oscine_eval.score import score_all, totals
from tests.oscine_eval.test_compare import evaluation
from tests.oscine_eval.test_score import recording


def complete(recordings: list[Recording], name: str = "set") -> Evaluation:
    made = evaluation(recordings, name)
    result = {**made.result, "date": "today", "command": "oscine eval run <here>", "versions": {"oscine": "1"}}
    known = Evaluation(made.folder, result, made.recordings)
    return known.with_figures(totals=totals(recordings, score_all(recordings)))


def written(recordings: list[Recording], name: str = "set") -> str:
    return render(complete(recordings, name), score_all(recordings))


def test_all_recordings_are_listed_worst_first() -> None:
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
    assert "http_500: oops" in html and "finish reason runaway" in html and "WER 17% (1 of 6)" in html
    assert "<del>text</del><ins>test</ins>" in html


def test_texts_and_transcripts_are_escaped() -> None:
    html = written([recording("<b>bold</b> & 'quoted'", "<script>alert(1)</script>")], "<i>name</i>")
    assert "<script>" not in html and "<b>" not in html and "<i>" not in html
    assert "&lt;script&gt;" in html and "&lt;b&gt;bold&lt;/b&gt; &amp; &#39;quoted&#39;" in html


def test_everything_from_a_server_or_a_machine_is_escaped() -> None:
    bad = "<u>\"&'"
    one = recording(bad, bad, failure=bad, finish_reason=bad, file=f"{bad}.wav", dnsmos={bad: 1.0, "ovrl": 1.0})
    made = complete([one], bad)
    figures = made.result["figures"]
    made = made.with_figures(
        transcriber={**figures["transcriber"], "recognizer": {"name": bad}, "without_dnsmos": bad},
        target={"preset": bad, "served": [bad], "fields": {}},
        workload={"name": bad, "seed": bad},
    )
    given = dict.fromkeys(("machine", "commit", "date", "command"), bad) | {"versions": {"oscine": bad}}
    html = render(Evaluation(made.folder, {**made.result, **given}, made.recordings), score_all([one]))
    assert "<u>" not in html and bad not in html and html.count("&lt;u&gt;&#34;&amp;&#39;") > 12


def test_a_missing_seed_is_not_shown_as_a_number() -> None:
    html = written([recording("Hello there.", seed=None)])
    assert "a seed chosen by the server" in html and "no seeds sent" in html
    assert "None" not in html and "seed 0" not in html
    assert "seed 7" in written([recording("Hello there.", seed=7)])


def test_the_page_loads_nothing_but_its_recordings() -> None:
    html = written([recording("Hello there.")])
    assert not re.findall(r"https?://|<script|<link|@import", html)
    assert "prefers-color-scheme:dark" in html


def test_a_page_without_transcripts_plays_the_recordings() -> None:
    recorded = Recording(number=0, take=0, text="Hello.", seed=1, language="en", file="000.wav", audio_s=1.0)
    made = complete([recorded]).with_figures(transcriber=None)
    html = render(made, score_all([recorded]))
    assert "not scored yet" in html and 'src="000.wav"' in html and "WER" not in html
