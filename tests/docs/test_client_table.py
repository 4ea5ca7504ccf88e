"""The table of tested clients is generated, and no test of a client is missing in it."""

import json
import subprocess
from pathlib import Path

from client_table import CLIENT_LISTS, CLIENTS, PAGE, ROOT, filled, names_of_tests, table, works
from tests.conftest import require_client, require_environment

OTHERS = ("openai (npm)", "ai (npm)", "wyoming-openai")
CLIENT_TESTS = ROOT / "tests" / "server" / "test_clients.py"
VERSIONS = "import importlib.metadata, json, sys; print(json.dumps([*map(importlib.metadata.version, sys.argv[1:])]))"


def test_the_table_of_clients_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert filled(page) == page, "run `python tools/client_table.py`"


def test_every_test_of_a_client_is_in_exactly_one_row() -> None:
    for name in names_of_tests(CLIENT_TESTS):
        rows = [
            client.name
            for client in CLIENTS
            if client.tests == CLIENT_TESTS.name and any(mark in name for mark in client.marks)
        ]
        assert len(rows) == 1, f"{name} is in the rows {rows}; see CLIENTS in tools/client_table.py"
    assert all(list(works(client)) for client in CLIENTS)


def test_the_list_of_npm_packages_names_no_registry() -> None:
    """`npm install --omit-lockfile-registry-resolved` writes it, so it installs from any registry."""
    lock = json.loads((CLIENT_LISTS / "node" / "package-lock.json").read_text(encoding="utf-8"))
    assert not [name for name, package in lock["packages"].items() if "resolved" in package]


def listed_versions() -> dict[str, str]:
    """Versions by package."""
    rows = dict(row.split(" | ")[:2] for row in table().splitlines()[2:])
    return {client.package: rows[f"| {client.name}"] for client in CLIENTS if client.package}


def installed_versions(python: Path, packages: list[str]) -> dict[str, str]:
    done = subprocess.run([python, "-c", VERSIONS, *packages], capture_output=True, text=True, check=True)
    return dict(zip(packages, json.loads(done.stdout), strict=True))


def test_the_versions_are_those_that_the_tests_run() -> None:
    python = require_environment("clients", "the clients are") / "bin" / "python"
    listed = {name: version for name, version in listed_versions().items() if name not in OTHERS}
    assert listed == installed_versions(python, list(listed))


def test_the_versions_in_other_runtimes_are_those_that_the_tests_run() -> None:
    modules = require_client("node", "npm") / "node_modules"
    found = {
        f"{name} (npm)": json.loads((modules / name / "package.json").read_text(encoding="utf-8"))["version"]
        for name in ("openai", "ai")
    }
    found |= installed_versions(require_client("wyoming", "Python 3.12") / "bin" / "python", ["wyoming-openai"])
    assert {name: listed_versions()[name] for name in OTHERS} == found
