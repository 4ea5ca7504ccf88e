"""The worker that is spawned before the settings are read."""

from pathlib import Path

import pytest

from oscine.serving.environment import early_worker
from tests.engine.recorder import wait_until
from tests.engine.remote.helpers import gone


def test_an_early_worker_gets_no_setting_and_ends_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys may be among the settings."""
    monkeypatch.setenv("OSCINE_SERVE_SERVER__API_KEYS", "secret")
    monkeypatch.setenv("oscine_serve_server__admin_keys", "secret")
    monkeypatch.setenv("OSCINE_SERVED", "kept")
    with early_worker() as spawned:
        assert spawned is not None
        environment = Path(f"/proc/{spawned.popen.pid}/environ")
        wait_until(lambda: b"OSCINE_SERVED=kept" in environment.read_bytes())
        assert b"secret" not in environment.read_bytes()
    assert gone(spawned.popen.pid)


def test_without_processes_the_command_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr("oscine.serving.environment.Child", refuse)
    with early_worker() as spawned:
        assert spawned is None
