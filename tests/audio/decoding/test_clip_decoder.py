"""A file can do no harm beyond its own decoding, whatever it does to its decoder."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from oscine.audio.decoding.clip_decoder import ClipDecoder
from oscine.audio.decoding.wire import ANY_CLIP, ClipLimits
from oscine.errors import VoiceError
from tests.audio.decoding import faulty_decoders

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def decoder() -> Iterator[ClipDecoder]:
    with ClipDecoder(faulty_decoders.__name__, cpu_s=1) as decoder:
        yield decoder


def decoded(decoder: ClipDecoder, file: bytes) -> bytes:
    samples, rate_hz = decoder.decode(file, "the file", ANY_CLIP)
    assert rate_hz == faulty_decoders.RATE_HZ
    return samples.astype(np.uint8).tobytes()


def refusal(decoder: ClipDecoder, file: bytes, limits: ClipLimits = ANY_CLIP) -> str:
    with pytest.raises(VoiceError) as caught:
        decoder.decode(file, "the file", limits)
    assert caught.value.param == "ref_audio" and "the file" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (b"crash", "cannot be decoded (it crashed the decoder, or takes more than 1 s of its time)"),
        (b"crash after a block", "it crashed the decoder"),
        (b"exit", "it crashed the decoder"),
        (b"loop", "takes more than 1 s of its time"),
        (b"memory", "it needs more than 256 MiB of memory"),
        (b"bug", "KeyError: 'a bug'"),
    ],
)
def test_a_file_that_breaks_its_decoder_is_refused_and_the_next_one_is_decoded(
    decoder: ClipDecoder, file: bytes, message: str
) -> None:
    assert message in refusal(decoder, file)
    assert decoded(decoder, b"good") == b"good"


@pytest.mark.skipif(sys.platform != "linux", reason="limits differ between systems")
@pytest.mark.parametrize("escape", [b"open a file", b"write a file", b"open a socket", b"start a program"])
def test_a_decoder_reaches_nothing_outside(decoder: ClipDecoder, escape: bytes) -> None:
    assert "Too many open files" in refusal(decoder, escape)


def test_a_decoder_does_not_see_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSCINE_SERVE_SERVER__API_KEYS", "secret")
    with ClipDecoder(faulty_decoders.__name__) as decoder:
        names = decoded(decoder, b"environment").decode().split("\n")
    assert "PATH" in names and not [name for name in names if name.startswith("OSCINE")]


def test_endless_output_is_cut_off(decoder: ClipDecoder) -> None:
    refusal(decoder, b"flood", ClipLimits(max_samples=2**20))
    assert decoded(decoder, b"good") == b"good"


def test_a_crash_does_not_touch_files_that_are_decoded_meanwhile(decoder: ClipDecoder) -> None:
    with ThreadPoolExecutor(4) as pool:
        crashes = [pool.submit(refusal, decoder, b"crash") for _ in range(10)]
        good = [pool.submit(decoded, decoder, f"good {index}".encode()) for index in range(30)]
        assert [one.result() for one in good] == [f"good {index}".encode() for index in range(30)]
        assert all("crashed" in one.result() for one in crashes)


def test_each_file_has_its_own_process(decoder: ClipDecoder) -> None:
    pids = {decoder.decode(b"pid", "the file", ANY_CLIP)[1] for _ in range(5)}
    assert len(pids) == 5 and os.getpid() not in pids


def test_a_killed_decoder_process_is_replaced(decoder: ClipDecoder) -> None:
    decoded(decoder, b"good")
    pid = decoder.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert decoded(decoder, b"good") == b"good"
    assert decoder.pid != pid


ORPHAN = """
import os, socket, sys, time
from oscine.audio.decoding import decoder_process
parent = os.getpid()
def too_late():
    while os.getppid() == parent:
        time.sleep(0.01)
decoder_process.die_with_parent = too_late
decoder_process._fork_child(socket.socket(fileno=int(sys.argv[1])), None)
os._exit(0)
"""


def test_a_child_whose_parent_dies_at_once_takes_no_file() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            number = theirs.fileno()
            subprocess.run([sys.executable, "-c", ORPHAN, str(number)], pass_fds=[number], check=True)
        ours.settimeout(600)
        assert ours.recv(1) == b"", "the child has ended, and nobody else holds the other end"


def test_closing_ends_the_process_and_the_next_file_starts_another() -> None:
    with ClipDecoder(faulty_decoders.__name__) as decoder:
        decoded(decoder, b"good")
        child = decoder._child
        assert child is not None
        decoder.close()
        assert child.popen.returncode == 0
        assert decoded(decoder, b"good") == b"good"
