"""Results are read completely or refused in one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oscine.errors import RequestError
from oscine_eval.recording import FORMAT, KIND, Evaluation, read_evaluation
from tests.oscine_eval.test_compare import TRANSCRIBER, evaluation
from tests.oscine_eval.test_score import recording


@pytest.fixture
def saved(tmp_path: Path) -> Evaluation:
    opinion = {"ovrl": 3, "sig": 3.5, "bak": 4.0, "p808": 3.2}
    made = [
        recording("Transcribed.", dnsmos=opinion, similarity=0.5),
        recording("Refused.", file=None, failure="http_500", number=1, seed=None, audio_s=0),
    ]
    usual = evaluation(made).result
    head = {"kind": KIND, "format": FORMAT, "date": "2030-01-01", "command": "oscine", "versions": {"oscine": "1"}}
    whole = Evaluation(tmp_path, {**usual, **head}, tuple(made))
    whole.save([{"flags": []}, {"flags": []}])
    return whole


def test_a_saved_evaluation_is_read_back(saved: Evaluation) -> None:
    assert read_evaluation(saved.folder) == saved
    assert read_evaluation(saved.folder / "result.json") == saved


def change(path: str, *value: Any) -> Callable[[dict], None]:
    """`path`: names and places separated by dots. No value: the key is removed."""
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
        (change("figures"), "missing required field `figures`"),
        (change("figures", []), "Expected `object`, got `array`"),
        (change("figures.recordings"), "missing required field `recordings`"),
        (change("figures.recordings", {}), "Expected `array`, got `object`"),
        (change("figures.recordings", []), "Expected `array` of length >= 1"),
        (change("figures.recordings.1", "x"), "Expected `object`, got `str`"),
        (change("figures.recordings.1.text"), "missing required field `text`"),
        (change("figures.recordings.0.audio_s", "long"), "Expected `float`, got `str`"),
        (change("figures.recordings.0.audio_s", None), "Expected `float`, got `null`"),
        (change("figures.recordings.0.dnsmos", {}), "missing required field `ovrl`"),
        (change("figures.transcriber"), "missing required field `transcriber`"),
        (change("figures.transcriber", {**TRANSCRIBER, "recognizer": None}), "Expected `object`, got `null`"),
        (change("figures.target.served"), "missing required field `served`"),
        (change("versions"), "missing required field `versions`"),
        *(
            (change("figures.recordings.0.file", file), "is not a file name in its folder")
            for file in ("../000.wav", "/etc/passwd", "a/000.wav", "..", ".", "")
        ),
    ],
)
def test_an_incomplete_result_is_refused(saved: Evaluation, broken: Callable[[dict], None], said: str) -> None:
    file = saved.folder / "result.json"
    result = json.loads(file.read_text())
    broken(result)
    file.write_text(json.dumps(result))
    with pytest.raises(RequestError, match=f"is not a complete result of `oscine eval run`: .*{said}"):
        read_evaluation(saved.folder)
