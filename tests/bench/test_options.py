"""A group of options is written once, and a user meets each of them at every command that takes the group."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from oscine.bench.options import Asked, expanded
from oscine.types import RequestError


@dataclass(frozen=True, kw_only=True)
class Size:
    height: Annotated[int, typer.Option(help="Must be said")]
    width: Annotated[int, typer.Option("--width", "-w", help="In metres")] = 3
    name: Annotated[str | None, typer.Option(help="Of the room")] = None


def app() -> typer.Typer:
    app = typer.Typer()

    @app.command()
    @expanded
    def build(place: Annotated[str, typer.Argument()], size: Size, doors: int = 1) -> None:
        """Builds a room."""
        print(place, size, doors)

    return app


def test_each_field_is_an_option_and_the_command_gets_them_as_one() -> None:
    said = CliRunner().invoke(app(), ["there", "-w", "5", "--doors", "2", "--height", "4"])
    assert said.stdout == f"there {Size(height=4, width=5)} 2\n"
    assert CliRunner().invoke(app(), ["there", "--height", "4"]).stdout == f"there {Size(height=4)} 1\n"


def test_a_field_without_a_default_must_be_given() -> None:
    said = CliRunner().invoke(app(), ["there"])
    assert said.exit_code == 2 and "Missing option '--height'" in said.output


def test_help_lists_the_commands_own_options_first() -> None:
    told = CliRunner().invoke(app(), ["--help"]).stdout
    assert "Builds a room." in told and "In metres" in told
    assert told.index("--doors") < told.index("--width") < told.index("--name")


def test_a_wrong_value_is_refused_by_its_options_name() -> None:
    said = CliRunner().invoke(app(), ["there", "--height", "4", "--width", "wide"])
    assert said.exit_code == 2 and "--width" in said.output


@pytest.mark.parametrize(
    ("target", "url", "key"),
    [
        ("oscine", "http://localhost:1", "ours"),
        ("openai", "https://api.openai.com/v1", "theirs"),
        ("openai", "https://eu.api.openai.com", "theirs"),
        ("openai", "http://localhost:1", None),
        ("openai", "https://api.openai.com.example.org", None),
        ("openai", "https://notapi.openai.com", None),
    ],
)
def test_a_key_may_come_from_the_environment_and_goes_to_its_owner_alone(
    target: str, url: str, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSCINE_API_KEY", "ours")
    monkeypatch.setenv("OPENAI_API_KEY", "theirs")
    assert Asked(target=target).at(url).api_key == key
    assert Asked(target=target, api_key="mine").at(url).api_key == "mine"


@pytest.mark.parametrize("timeout", [float("nan"), 0.0, -1.0, float("inf"), 1e9])
def test_a_timeout_that_is_no_time_is_refused(timeout: float) -> None:
    with pytest.raises(RequestError, match="--timeout must be above 0"):
        Asked(timeout=timeout).at("http://localhost:1")
    assert Asked(timeout=0.5).at("http://localhost:1").url == "http://localhost:1"


@pytest.mark.parametrize("extra", ["{", "[1]", "7"])
def test_extra_fields_are_a_json_object(extra: str) -> None:
    with pytest.raises(RequestError, match="--extra"):
        Asked(extra=extra).at("http://localhost:1")
