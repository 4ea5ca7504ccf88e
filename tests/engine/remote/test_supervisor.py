"""Workers that die or hang in every way that a fake engine can, and parents that die."""

import errno
import functools
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from oscine.config import WorkerConfig
from oscine.engine.remote.client import EngineClient
from oscine.errors import CheckpointError, ConfigError, EngineError, NotReadyError, OverloadedError
from oscine.request import SpeechRequest
from tests.engine.recorder import WAIT_S, submit, wait_until
from tests.engine.remote.fake_engine import FakeConfig, FakeEngine, build_fake
from tests.engine.remote.helpers import (
    CONFIG,
    IMPATIENT,
    LONG,
    SampleRecorder,
    gone,
    speak,
    speak_and_then,
    started,
)

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


@pytest.fixture
def start():
    engines = []

    def make(*arguments) -> EngineClient:
        engines.append(started(*arguments))
        return engines[-1]

    yield make
    for engine in engines:
        engine.stop()


def test_a_clone_that_takes_too_long_or_kills_the_worker_is_an_error(start):
    engine = start(replace(CONFIG, clone_s=0.3))
    clip = (np.full(16000, 0.5, np.float32), 16000)
    with pytest.raises(EngineError, match=r"did not make the voice within 0\.3 s"):
        engine.clone(clip, "sleep 600")
    engine = start()
    with pytest.raises(EngineError, match="SIGKILL"):
        engine.clone(clip, "die kill")
    engine.wait_ready(WAIT_S)
    assert engine.clone(clip).speaker[0] == 16


def test_sigkill_ends_every_utterance_once_and_the_worker_restarts(start, tmp_path):
    wait_for = tmp_path / "wait_for"
    wait_for.touch()
    engine = start(CONFIG, FakeConfig(wait_for=str(wait_for)))
    first_pid = engine.health.pid
    recorders = [speak(engine, LONG, seed) for seed in range(8)]
    wait_until(lambda: all(len(one.chunks) > 3 for one in recorders))
    wait_for.unlink()
    os.kill(first_pid, signal.SIGKILL)
    for one in recorders:
        last = one.last()
        assert last.finish_reason == "error" and isinstance(last.error, EngineError)
        assert "SIGKILL" in str(last.error) and last.seed == one.seed
    assert not engine.status().ready
    with pytest.raises(OverloadedError) as caught:
        speak(engine, "say 1")
    assert caught.value.retry_after_s > 0
    wait_for.touch()
    engine.wait_ready(WAIT_S)
    assert speak(engine, "say 5", 77).last().finish_reason == "stop" and engine.status().ready
    for one in recorders:
        one.check()
    assert engine.health.restarts == 1 and "SIGKILL" in engine.health.last_reason
    assert engine.health.pid != first_pid and gone(first_pid)


@pytest.mark.parametrize(
    ("text", "reason"), [("die exit", "status 3"), ("die kill", "SIGKILL"), ("die sick", "does not work any more")]
)
def test_a_failing_worker_is_restarted(start, text, reason):
    engine = start()
    recorder = speak_and_then(engine, f"{text} say 100000", 4)
    last = recorder.last()
    assert last.finish_reason == "error" and reason in str(last.error)
    recorder.check()
    assert len(recorder.chunks) >= 4  # three before the failure, plus the end
    engine.wait_ready(WAIT_S)
    assert speak(engine, "say 1").last().finish_reason == "stop"


def test_a_hung_engine_loop_is_detected_by_the_heartbeat(start):
    engine = start(IMPATIENT)
    recorders = [speak(engine, LONG, 1), speak(engine, "say 3 hang loop", 2)]
    for one in recorders:
        assert f"no sign of life for {IMPATIENT.heartbeat_s:g} s" in str(one.last().error)
        one.check()
    engine.wait_ready(WAIT_S)
    assert speak(engine, "say 1").last().finish_reason == "stop"


def test_a_hung_submit_is_refused_and_detected_by_the_heartbeat(start):
    engine = start(IMPATIENT)
    recorder = SampleRecorder()
    with pytest.raises(EngineError, match="no sign of life"):
        submit(engine, SpeechRequest(text="hang submit"), recorder)
    assert not recorder.chunks
    engine.wait_ready(WAIT_S)


def test_an_answer_that_takes_too_long_is_an_error_and_cancels(start):
    engine = start(WorkerConfig(submit_s=0.2, terminate_s=0.2, heartbeat_s=5.0))
    with pytest.raises(EngineError, match=r"within 0\.2 s"):
        speak(engine, "hang submit")
    assert engine.status().load == 0


@pytest.mark.parametrize(("fail_build", "text"), [("exit", "status 7"), ("CheckpointError", "no CheckpointError")])
def test_a_worker_that_fails_again_and_again_is_restarted_until_it_works(start, tmp_path, fail_build, text, caplog):
    """Whatever the reason: a folder may be away for a while, too."""
    config = WorkerConfig(backoff_s=0.02, max_backoff_s=0.1, max_restarts=2, terminate_s=1.0)
    marker = tmp_path / "built"
    engine = start(config, FakeConfig(fail_build=fail_build, marker=str(marker)))
    recorder = speak_and_then(engine, "die kill")
    assert "SIGKILL" in str(recorder.last().error)
    with pytest.raises(EngineError, match=rf"{text}; this was failure 3 within"):
        engine.wait_ready(WAIT_S)
    with pytest.raises(EngineError, match="this was failure"):
        speak(engine, "say 1")
    assert engine.health.state == "failed" and text in engine.health.last_reason
    wait_until(lambda: engine.health.restarts >= 4)
    marker.unlink()  # the next build works
    wait_until(lambda: engine.health.state == "ready")
    assert speak(engine, "say 1").last().finish_reason == "stop"
    messages = [record.getMessage() for record in caplog.records]
    assert any("SIGKILL; it is restarted in 0.0 s" in message for message in messages)
    assert any(f"{text} (failure 3 within 600 s); the next try is in 0.1 s" in message for message in messages)
    assert any("ready again" in message and f"restart {engine.health.restarts}" in message for message in messages)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOSPC, errno.EPERM, errno.ENOMEM])
def test_a_worker_that_cannot_even_be_spawned_is_tried_again(start, monkeypatch, caplog, code):
    """Happens when no descriptor is left, or the temporary folder is full."""
    engine = start(WorkerConfig(backoff_s=0.02, max_backoff_s=0.1, max_restarts=2, terminate_s=1.0))
    tries = []

    def spawn(*arguments, **options):
        tries.append(arguments)
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", spawn)
        os.kill(engine.health.pid, signal.SIGKILL)
        wait_until(lambda: len(tries) > 4)
        assert engine.health.state == "failed" and os.strerror(code) in engine.health.last_reason
        assert engine.health.restarts >= 4
    wait_until(lambda: engine.health.state == "ready")
    assert speak(engine, "say 1").last().finish_reason == "stop"
    assert any(f"could not be started: [Errno {code}]" in one.getMessage() for one in caplog.records)


def test_a_worker_that_is_killed_while_it_restarts_is_restarted_again(start, tmp_path):
    wait_for = tmp_path / "wait_for"
    wait_for.touch()
    engine = start(CONFIG, FakeConfig(wait_for=str(wait_for)))
    wait_for.unlink()
    killed = []
    for _ in range(3):
        pid = engine.health.pid
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)
        wait_until(lambda: engine.health.pid not in (None, *killed))
        with pytest.raises(OverloadedError):
            speak(engine, "say 1")
    wait_for.touch()
    engine.wait_ready(WAIT_S)
    assert speak(engine, "say 1").last().finish_reason == "stop" and engine.health.restarts == 3
    assert all(map(gone, killed))


@pytest.mark.parametrize(
    ("fail_build", "error", "text"),
    [
        ("CheckpointError", CheckpointError, "no CheckpointError"),
        ("ConfigError", ConfigError, "no ConfigError"),
        ("ValueError", EngineError, "ValueError: a stranger"),
        ("exit", EngineError, "status 7 before it was ready"),
    ],
)
def test_a_first_start_that_fails_says_why_and_is_not_repeated(fail_build, error, text, capfd):
    engine = EngineClient(functools.partial(build_fake, FakeConfig(fail_build=fail_build)), CONFIG)
    with pytest.raises(error, match=text):
        engine.wait_ready(WAIT_S)
    with pytest.raises(EngineError, match=text):
        speak(engine, "say 1")
    assert engine.health.restarts == 0 and not engine.status().ready
    engine.stop()
    assert engine.health.state == "stopped"


@pytest.mark.parametrize(
    ("fail_build", "reason"),
    [("OverloadedError", "full"), ("OutOfMemoryError", "no OutOfMemoryError"), ("kill", "SIGKILL")],
)
def test_a_first_start_that_fails_for_a_passing_reason_is_tried_again(fail_build, reason, tmp_path, caplog):
    fake = FakeConfig(fail_build=fail_build, log=str(tmp_path / "builds"), failures=2)
    engine = EngineClient(functools.partial(build_fake, fake), CONFIG)
    try:
        engine.wait_ready(WAIT_S)
        assert speak(engine, "say 1").last().finish_reason == "stop"
        assert engine.health.restarts == 2 and reason in engine.health.last_reason
    finally:
        engine.stop()
    assert sum("it is restarted in" in record.getMessage() for record in caplog.records) == 2


def test_a_first_start_that_gives_no_sign_of_life_is_tried_again(tmp_path):
    fake = FakeConfig(wait_for=str(tmp_path / "never"))
    engine = EngineClient(functools.partial(build_fake, fake), replace(CONFIG, start_s=0.05))
    try:
        wait_until(lambda: engine.health.restarts >= 2)
        assert "no sign of life for 0.05 s" in engine.health.last_reason
    finally:
        engine.stop()


@pytest.mark.parametrize(("code", "passes"), [(errno.EMFILE, True), (errno.ENOMEM, True), (errno.EACCES, False)])
def test_a_first_worker_that_cannot_be_spawned_is_tried_again_if_that_may_pass(monkeypatch, code, passes):
    popen, tries = subprocess.Popen, []

    def spawn(*arguments, **options):
        tries.append(arguments)
        if len(tries) < 3:
            raise OSError(code, os.strerror(code))
        return popen(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", spawn)
    engine = EngineClient(functools.partial(build_fake, FakeConfig()), CONFIG)
    try:
        if passes:
            engine.wait_ready(WAIT_S)
        else:
            with pytest.raises(EngineError, match=os.strerror(code)):
                engine.wait_ready(WAIT_S)
        assert len(tries) == (3 if passes else 1)
    finally:
        engine.stop()


def test_an_engine_that_is_always_overloaded_at_its_start_has_failed_and_is_still_tried(tmp_path):
    config = replace(CONFIG, backoff_s=0.01, max_backoff_s=0.05, max_restarts=2)
    fake = FakeConfig(fail_build="OverloadedError", log=str(tmp_path / "builds"), failures=5)
    engine = EngineClient(functools.partial(build_fake, fake), config)
    try:
        with pytest.raises(EngineError, match="could not be built: full; this was failure 3 within"):
            engine.wait_ready(WAIT_S)
        wait_until(lambda: engine.health.state == "ready")
        assert speak(engine, "say 1").last().finish_reason == "stop" and engine.health.restarts == 5
    finally:
        engine.stop()


def test_an_engine_that_starts_says_so_and_is_not_called_overloaded(tmp_path):
    wait_for = tmp_path / "wait_for"
    engine = EngineClient(functools.partial(build_fake, FakeConfig(wait_for=str(wait_for))), CONFIG)
    clip = (np.full(16000, 0.5, np.float32), 16000)
    try:
        for ask in (lambda: speak(engine, "say 1"), lambda: engine.clone(clip)):
            with pytest.raises(NotReadyError, match="the engine is starting; retry in") as refused:
                ask()
            assert refused.value.retry_after_s >= 1
    finally:
        wait_for.touch()
        engine.stop()


def test_a_build_that_cannot_be_pickled_is_refused_at_once(monkeypatch):
    with pytest.raises(ConfigError, match="cannot be sent"):
        EngineClient(lambda progress: FakeEngine())
    monkeypatch.setattr(build_fake, "__module__", "__main__")
    with pytest.raises(ConfigError, match="not in a script"):
        EngineClient(functools.partial(build_fake, FakeConfig()))


PARENT = """
import functools, sys, threading, time
from oscine.engine.remote.client import EngineClient
from tests.engine.remote.fake_engine import FakeConfig, build_fake
if sys.argv[1] == "building":
    began = threading.Event()
    build = functools.partial(build_fake, FakeConfig(build_s=600))
    engine = EngineClient(build, on_progress=lambda *progress: began.set())
    began.wait(600)
else:
    engine = EngineClient(functools.partial(build_fake, FakeConfig()))
    engine.wait_ready(600)
print(engine.health.pid, flush=True)
if sys.argv[1] != "leave":
    time.sleep(600)
"""


@pytest.mark.parametrize("moment", ["serving", "building", "frozen", "leave"])
def test_no_worker_or_file_outlives_its_parent(moment, tmp_path):
    """The parent is killed or exits without `stop`: while serving, while building, and with a suspended worker."""
    command = [sys.executable, "-c", PARENT, moment]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        if moment == "frozen":
            os.kill(pid, signal.SIGSTOP)
        if moment == "leave":
            assert parent.wait(WAIT_S) == 0
        else:
            assert not gone(pid)
            parent.kill()
        wait_until(lambda: gone(pid))
    assert not list(tmp_path.iterdir())


SUSPENDED = """
import functools, sys
from tests.engine.remote.fake_engine import FakeConfig, build_fake
from oscine.engine.remote.client import EngineClient
from tests.engine.remote.helpers import IMPATIENT, speak
engine = EngineClient(functools.partial(build_fake, FakeConfig()), IMPATIENT)
engine.wait_ready(600)
print("ready", flush=True)
sys.stdin.readline()
speak(engine, "say 3").last()
print(engine.health.restarts, flush=True)
"""


def test_a_worker_is_not_blamed_while_its_parent_was_suspended():
    command = [sys.executable, "-c", SUSPENDED]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None and parent.stdin is not None
        assert parent.stdout.readline() == "ready\n"
        time.sleep(0.3)  # so that no unread message is in the socket
        parent.send_signal(signal.SIGSTOP)
        time.sleep(2 * IMPATIENT.heartbeat_s)
        parent.send_signal(signal.SIGCONT)
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "0\n"
