"""`oscine plan` says how many cards a load needs, what they cost, and what it assumes."""

import json

import pytest
from typer.testing import CliRunner

from oscine.commands import main
from oscine.errors import ConfigError
from oscine.fleet import capacity


@pytest.fixture(autouse=True)
def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "WARM_S", 0.1)
    monkeypatch.setattr(capacity, "WINDOW_S", 0.4)


def planned(*words: str) -> str:
    result = CliRunner().invoke(main.app, ["plan", "--slots", "2", "--speech-s", "1", *words], catch_exceptions=False)
    return result.stdout


def test_it_prints_cards_cost_and_assumptions() -> None:
    said = planned("--requests-per-second", "40", "--price-per-hour", "3.5")
    cards = int(said.split(" cards: ")[0])
    assert cards >= 2 and "1 spare" in said and "Assumptions:" in said
    assert f"{cards * 3.5:.2f} an hour" in said and "for a million characters" in said


def test_it_prints_json() -> None:
    found = json.loads(planned("--requests-per-second", "40", "--spare", "0", "--json"))
    assert found["machine"] == "h200" and found["spare"] == 0 and found["per_card"] * found["cards"] >= 40


@pytest.mark.parametrize("words", [("--p95-ms", "0"), ("--speech-s", "nan"), ("--spare", "-1"), ("--gpu", "abacus")])
def test_impossible_values_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"must be from|unknown machine"):
        planned("--requests-per-second", "40", *words)
