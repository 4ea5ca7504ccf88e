"""The log of a first try is one of the present commands, installation and banner."""

import io
import re
from dataclasses import replace

from rich.console import Console

from first_five_minutes import PAGE, steps
from oscine.server.http.listener import bind
from oscine.serving.settings import Settings
from oscine.serving.startup_display import StartupDisplay
from oscine.types import EngineStatus
from tests.docs.live_server import ROOT
from tests.server.scripted_engine import CARD

LOG = PAGE.read_text(encoding="utf-8")
INSTALLED = LOG.split("## Install and serve: ")[1].split("\n## ")[0]


def test_the_page_has_the_steps_that_its_tool_takes() -> None:
    port = re.findall(r"--port (\d+)", LOG)[0]
    expected = [
        (title, command.replace(str(ROOT), "REPOSITORY").splitlines()[0]) for title, command in steps(int(port))
    ]
    assert re.findall(r"^## (.+): [\d.]+ s\n\n```text\n\$ (.+)", LOG, re.MULTILINE) == expected


def test_the_page_shows_the_installation_of_the_makefile() -> None:
    rule = (ROOT / "Makefile").read_text(encoding="utf-8").split("\n.venv/.installed: pyproject")[1].split("\n\n")[0]
    told = re.findall(r"@echo '(.+)'", rule)
    assert len(told) == 3 and [line for line in INSTALLED.splitlines() if line in told] == told


def test_the_page_shows_the_banner_of_the_server() -> None:
    shown = INSTALLED[INSTALLED.rindex("Oscine ") :].split("\n```")[0].splitlines()
    facts = re.search(r"device  (.+), about (\d+) streams? in real time", INSTALLED)
    memory = re.search(r"^  memory  (.+)$", INSTALLED, re.MULTILINE)
    assert facts and memory
    streams = int(facts[2])
    status = EngineStatus(True, 2 * streams, 0, 0, 0, 0.0, device=facts[1], real_time_streams=streams)
    screen = io.StringIO()
    display = StartupDisplay(Settings(), Console(file=screen, color_system=None))
    with display, bind("127.0.0.1", 0) as listener:
        display.reporter("demo", "auto")(f"memory: {memory[1]}", 1, 1)
        display.ready(listener, [(replace(CARD, name="demo"), status)])

    def comparable(lines: list[str]) -> list[str]:
        """Replaces what differs: the version, the port and the time."""
        return [re.sub(r"[\d.]*\d", "0", line) for line in lines if line.strip()]

    assert comparable(shown) == comparable(screen.getvalue().splitlines())
