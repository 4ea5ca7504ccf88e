"""Options that commands share: groups, targets, keys."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from oscine.errors import RequestError
from oscine_bench.target_options import TargetOptions, with_option_groups


@dataclass(frozen=True, kw_only=True)
class Size:
    height: Annotated[int, typer.Option(help="Required")]
    width: Annotated[int, typer.Option("--width", "-w", help="In meters")] = 3
    name: Annotated[str | None, typer.Option(help="Of the room")] = None


def app() -> typer.Typer:
    app = typer.Typer()

    @app.command()
    @with_option_groups
    def build(place: Annotated[str, typer.Argument()], size: Size, doors: int = 1) -> None:
        """Builds a room."""
        print(place, size, doors)

    return app


def test_each_field_is_an_option_and_the_command_gets_the_group() -> None:
    ran = CliRunner().invoke(app(), ["there", "-w", "5", "--doors", "2", "--height", "4"])
    assert ran.stdout == f"there {Size(height=4, width=5)} 2\n"
    assert CliRunner().invoke(app(), ["there", "--height", "4"]).stdout == f"there {Size(height=4)} 1\n"


def test_a_field_without_a_default_is_required() -> None:
    ran = CliRunner().invoke(app(), ["there"])
    assert ran.exit_code == 2 and "Missing option '--height'" in ran.output


def test_help_lists_the_commands_own_options_first() -> None:
    shown = CliRunner().invoke(app(), ["--help"]).stdout
    assert "Builds a room." in shown and "In meters" in shown
    assert shown.index("--doors") < shown.index("--width") < shown.index("--name")


def test_a_wrong_value_names_the_option() -> None:
    ran = CliRunner().invoke(app(), ["there", "--height", "4", "--width", "wide"])
    assert ran.exit_code == 2 and "--width" in ran.output


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
def test_a_key_from_the_environment_is_sent_only_to_its_service(
    target: str, url: str, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSCINE_API_KEY", "ours")
    monkeypatch.setenv("OPENAI_API_KEY", "theirs")
    assert TargetOptions(target=target).make_target(url).api_key == key
    assert TargetOptions(target=target, api_key="mine").make_target(url).api_key == "mine"


@pytest.mark.parametrize("timeout", [float("nan"), 0.0, -1.0, float("inf"), 1e9])
def test_an_impossible_timeout_is_refused(timeout: float) -> None:
    with pytest.raises(RequestError, match="--timeout must be above 0"):
        TargetOptions(timeout=timeout).make_target("http://localhost:1")
    assert TargetOptions(timeout=0.5).make_target("http://localhost:1").url == "http://localhost:1"


@pytest.mark.parametrize("extra", ["{", "[1]", "7"])
def test_extra_fields_must_be_a_json_object(extra: str) -> None:
    with pytest.raises(RequestError, match="--extra"):
        TargetOptions(extra=extra).make_target("http://localhost:1")
