"""A child process runs this package, talks to its parent, and ends on disconnect or when its parent is gone."""

import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from oscine.process.child import Child, as_pipe, read_message, write_message

IMPORTS = "from oscine.process.child import *\nfrom oscine.process.child import *\nimport os, sys, time"
SpawnChild = Callable[..., Child]


@pytest.fixture
def spawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SpawnChild:
    monkeypatch.syspath_prepend(tmp_path)

    def spawned(body: str, *arguments: str, environment: dict[str, str] | None = None) -> Child:
        main = f"def main(connection, *arguments):\n    pipe = as_pipe(connection_to_parent(connection))\n    {body}\n"
        (tmp_path / "a_child.py").write_text(f"{IMPORTS}\n{main}")
        return Child("a_child", *arguments, environment=environment)

    return spawned


def test_arguments_environment_and_messages_arrive(spawn: SpawnChild) -> None:
    body = "write_message(pipe, {'got': [arguments, os.environ.get('GIVEN')]}, read_message(pipe)[1] * 2)"
    with spawn(body, "a", "b c", environment={"GIVEN": "yes"}) as child:
        write_message(child.pipe, {}, b"12")
        assert read_message(child.pipe) == ({"got": [["a", "b c"], "yes"]}, b"1212")


def test_what_a_child_prints_is_no_message(spawn: SpawnChild, capfd: pytest.CaptureFixture[str]) -> None:
    with spawn("print('hello', flush=True); write_message(pipe, {'done': True})") as child:
        assert read_message(child.pipe) == ({"done": True}, b"")
    assert capfd.readouterr() == ("", "hello\n")


def test_a_child_that_ends_is_the_end_of_the_pipe(spawn: SpawnChild) -> None:
    with spawn("sys.exit(3)") as child:
        with pytest.raises(EOFError):
            read_message(child.pipe)
        assert child.popen.wait() == 3


def test_a_child_ends_when_its_parent_disconnects_and_is_killed_when_it_does_not(spawn: SpawnChild) -> None:
    polite = spawn("sys.exit(7 if not pipe.read() else 1)")
    polite.end(timeout_s=600)
    assert polite.popen.returncode == 7
    stubborn = spawn("time.sleep(3600)")
    stubborn.end()
    stubborn.end()
    assert stubborn.popen.returncode == -9


def test_ending_a_child_wakes_up_a_thread_that_waits_for_its_answer(spawn: SpawnChild) -> None:
    child, failures = spawn("time.sleep(3600)"), []
    assert child.pipe

    def wait() -> None:
        try:
            read_message(child.pipe)
        except (EOFError, OSError) as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    child.end()
    thread.join(600)
    assert len(failures) == 1


def test_programs_that_a_child_starts_do_not_keep_its_connection(spawn: SpawnChild) -> None:
    body = "import subprocess; subprocess.Popen(['sleep', '60'], close_fds=False); os._exit(0)"
    with spawn(body) as child, pytest.raises(EOFError):
        read_message(child.pipe)


PARENT = """
import sys
sys.path[:0] = [sys.argv[1]]
from oscine.process.child import Child
from oscine.process.child import read_message
child = Child("a_child")
read_message(child.pipe)
print(child.popen.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal is Linux's")
def test_a_child_that_asks_for_it_dies_with_its_parent(spawn: SpawnChild, tmp_path: Path) -> None:
    body = "die_with_parent(); write_message(pipe, {}); time.sleep(3600)"
    with spawn(body) as first:  # writes the module
        read_message(first.pipe)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout and parent.stdin
    watched = os.pidfd_open(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    assert select.select([watched], [], [], 600)[0], "the child has ended"
    os.close(watched)
    parent.stdin.close()
    parent.stdout.close()


def test_half_a_message_is_the_end() -> None:
    ours, theirs = socket.socketpair()
    with ours, as_pipe(ours) as pipe:
        with theirs:
            theirs.sendall(b'{"bytes": 10}\n12345')
        with pytest.raises(EOFError):
            read_message(pipe)
