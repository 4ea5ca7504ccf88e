"""A result that is read is whole, or refused in one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.evaluate.test_compare import EARS, evaluation
from tests.evaluate.test_score import recording

from oscine.evaluate.recording import FORMAT, KIND, Evaluation, read_evaluation
from oscine.types import RequestError


@pytest.fixture
def saved(tmp_path: Path) -> Evaluation:
    opinion = {"ovrl": 3, "sig": 3.5, "bak": 4.0, "p808": 3.2}
    made = [
        recording("Heard.", dnsmos=opinion, similarity=0.5),
        recording("Refused.", file=None, failure="http_500", number=1, seed=None, audio_s=0),
    ]
    usual = evaluation(made).result
    head = {"kind": KIND, "format": FORMAT, "date": "2030-01-01", "command": "oscine", "versions": {"oscine": "1"}}
    whole = Evaluation(tmp_path, {**usual, **head}, tuple(made))
    whole.save([{"flags": []}, {"flags": []}])
    return whole


def test_what_is_saved_is_read_again(saved: Evaluation) -> None:
    assert read_evaluation(saved.folder) == saved
    assert read_evaluation(saved.folder / "result.json") == saved


def change(path: str, *value: Any) -> Callable[[dict], None]:
    """`path`: names and places with points between them. No value: it is taken away."""
    *above, last = [int(part) if part.isdigit() else part for part in path.split(".")]

    def changed(result: Any) -> None:
        for part in above:
            result = result[part]
        del result[last]
        if value:
            result.insert(last, *value) if isinstance(result, list) else result.update({last: value[0]})

    return changed


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (change("figures"), "it has no 'figures'"),
        (change("figures", []), r"figures cannot be \[\]"),
        (change("figures.recordings"), "figures has no 'recordings'"),
        (change("figures.recordings", {}), r"figures.recordings cannot be \{\}"),
        (change("figures.recordings", []), "figures.recordings is empty"),
        (change("figures.recordings.1", "x"), r"figures.recordings\[1\] cannot be 'x'"),
        (change("figures.recordings.1.text"), r"figures.recordings\[1\] has no 'text'"),
        (change("figures.recordings.0.audio_s", "long"), r"figures.recordings\[0\].audio_s cannot be 'long'"),
        (change("figures.recordings.0.audio_s", None), r"figures.recordings\[0\].audio_s cannot be None"),
        (change("figures.recordings.0.dnsmos", {}), r"figures.recordings\[0\].dnsmos has no 'ovrl'"),
        (change("figures.ears"), "figures has no 'ears'"),
        (change("figures.ears", {**EARS, "recogniser": None}), "figures.ears.recogniser cannot be None"),
        (change("figures.target.served"), "figures.target has no 'served'"),
        (change("versions"), "it has no 'versions'"),
        *(
            (change("figures.recordings.0.file", file), "is no file beside it")
            for file in ("../000.wav", "/etc/passwd", "a/000.wav", "..", ".", "")
        ),
    ],
)
def test_a_result_that_is_not_whole_is_refused(saved: Evaluation, broken: Callable[[dict], None], said: str) -> None:
    file = saved.folder / "result.json"
    result = json.loads(file.read_text())
    broken(result)
    file.write_text(json.dumps(result))
    with pytest.raises(RequestError, match=f"is no whole result of `oscine eval run`: .*{said}"):
        read_evaluation(saved.folder)
