"""The engine in its own process, while it works: exact, in order, one listener never at the cost of another."""

import functools
import os
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.engine.listening import CONFIG, LONG, WAIT_S, Heard, eventually, gone, speak, speak_and_then, started
from tests.engine.remote.fake_engine import FakeConfig, FakeEngine, build_fake, refusal

from oscine.engine.remote.client import EngineClient
from oscine.types import (
    AppendText,
    AudioChunk,
    Cancel,
    EndText,
    EngineError,
    OverloadedError,
    RequestError,
    SpeechRequest,
    VoiceError,
)


@pytest.fixture(scope="module")
def shared():
    engine = started()
    yield engine
    assert engine.health.restarts == 0, engine.health
    engine.stop()


def test_many_utterances_interleaved_arrive_exact_and_in_order(shared):
    with ThreadPoolExecutor(8) as pool:
        heard = list(pool.map(lambda seed: speak(shared, f"say {seed % 7 * 10}", seed), range(1, 65)))
    for one in heard:
        assert one.end().finish_reason == "stop" and one.end().seed == one.seed
        one.check()
        assert len(one.chunks) == one.seed % 7 * 10 + 1


@pytest.mark.parametrize(
    "kind",
    ["RequestError", "VoiceError", "TooLongError", "OverloadedError", "EngineError", "ConfigError", "ValueError"],
)
def test_a_refused_request_keeps_its_error(shared, kind):
    expected = EngineError("ValueError: a stranger") if kind == "ValueError" else refusal(kind)
    heard = Heard()
    with pytest.raises(type(expected)) as caught:
        shared.submit(SpeechRequest(text=f"refuse {kind}"), heard)
    assert type(caught.value) is type(expected) and str(caught.value) == str(expected)
    assert vars(caught.value) == vars(expected)
    assert not heard.chunks and speak(shared, "say 1").end().finish_reason == "stop"


def test_text_may_follow_and_commands_after_the_end_are_no_error(shared):
    heard = Heard(5)
    utterance = shared.submit(SpeechRequest(text="say 2", seed=5), heard, streaming_text=True)
    shared.tell(utterance, AppendText("say 3"))
    eventually(lambda: len(heard.chunks) == 5)
    assert not heard.ended.is_set()
    shared.tell(utterance, EndText())
    assert heard.end().finish_reason == "stop"
    heard.check()
    for command in (AppendText("x"), EndText(), Cancel()):
        shared.tell(utterance, command)
        shared.tell("nobody", command)


def test_a_piece_of_text_that_cannot_be_spoken_ends_its_utterance_alone(shared):
    heard = Heard()
    utterance = shared.submit(SpeechRequest(text="say 2"), heard, streaming_text=True)
    shared.tell(utterance, AppendText("\0"))
    assert isinstance(heard.end().error, RequestError) and str(heard.end().error) == "no NUL"
    eventually(lambda: shared._supervisor.status.slots_active == 0)
    assert speak(shared, "say 1").end().finish_reason == "stop"


def test_status_counts_at_once_and_never_waits(shared):
    heard, ids = [Heard() for _ in range(12)], []
    for one in heard:
        ids.append(shared.submit(SpeechRequest(text=LONG), one))
        status = shared.status()
        assert status.ready and status.slots == 8 and status.slots_active + status.queued == len(ids)
    for utterance in ids:
        shared.tell(utterance, Cancel())
    assert [one.end().finish_reason for one in heard] == ["cancelled"] * 12
    assert shared.status().slots_active + shared.status().queued == 0
    eventually(lambda: shared.status().frames > 0)  # with the next heartbeat


def test_200_submits_and_cancels_leave_nothing_behind(shared):
    def once(number: int) -> Heard:
        heard = Heard(number)
        utterance = shared.submit(SpeechRequest(text=LONG, seed=number), heard)
        time.sleep(number % 5 * 0.001)
        shared.tell(utterance, Cancel())
        return heard

    descriptors = len(os.listdir("/proc/self/fd"))
    with ThreadPoolExecutor(4) as pool:
        for heard in pool.map(once, range(200)):
            assert heard.end().finish_reason == "cancelled"
            heard.check()
    assert not shared._utterances and len(os.listdir("/proc/self/fd")) <= descriptors
    eventually(lambda: shared._supervisor.status.slots_active + shared._supervisor.status.queued == 0)


def test_a_slow_listener_does_not_hold_up_the_others(shared):
    """Two delivery threads: one slow listener costs the others nothing; with more, they wait one call of each."""
    go_on = threading.Event()
    slow = speak(shared, "say 20", 1, hold=lambda: go_on.wait(2 * WAIT_S))
    quick = [speak(shared, "say 20", seed) for seed in range(2, 8)]
    for one in quick:
        assert one.end().finish_reason == "stop"
        one.check()
    assert not slow.chunks
    go_on.set()
    slow.end()
    slow.check()


def test_more_slow_listeners_than_threads_delay_the_others_by_one_call_each(shared):
    go_on, over = threading.Event(), threading.Event()

    def hold() -> None:
        go_on.wait(2 * WAIT_S)
        over.wait(0.01)

    slow = [speak(shared, "say 100", seed, hold=hold) for seed in range(3)]
    counts: list[int] = []
    quick = speak(shared, "say 10", 9, hold=lambda: counts.append(max(len(one.chunks) for one in slow)))
    eventually(lambda: not shared._utterances)  # every chunk is here, and waits for a thread
    go_on.set()
    quick.end()
    over.set()
    # 11 chunks, before each of them at most one call of each slow listener; some more while a thread was not let run.
    assert counts[-1] < 50, counts
    for one in [*slow, quick]:
        one.end()
        one.check()


def test_a_listener_that_raises_is_cancelled_alone(shared, caplog):
    def broken(chunk: AudioChunk) -> None:
        raise RuntimeError("the listener has left")

    shared.submit(SpeechRequest(text=LONG), broken)
    other = speak(shared, "say 30", 3)
    assert other.end().finish_reason == "stop"
    eventually(lambda: not shared._utterances)
    eventually(lambda: shared._supervisor.status.slots_active == 0)
    assert [record.exc_info[1].args for record in caplog.records] == [("the listener has left",)]


CLIP = (np.full(16000, 0.5, np.float32), 16000)


@pytest.mark.parametrize("transcript", [None, "what was said", "\ud800"])
def test_a_voice_travels_as_it_is(shared, transcript):
    assert shared.clone(CLIP, transcript) == FakeEngine().clone(CLIP, transcript)
    assert not shared._clones


def test_a_voice_in_the_making_holds_nobody_up(shared, tmp_path):
    begun, words = tmp_path / "begun", f"hold {tmp_path}"
    with ThreadPoolExecutor(2) as pool:
        voices = [pool.submit(shared.clone, CLIP, words) for _ in range(2)]
        eventually(begun.exists)
        heard = speak(shared, "say 20")
        assert heard.end().finish_reason == "stop" and not any(voice.done() for voice in voices)
        assert begun.read_text() == "begun\n"  # one after the other
        (tmp_path / "go_on").touch()
        assert [voice.result(WAIT_S).transcript for voice in voices] == [words] * 2


def test_what_is_no_clip_is_refused_with_its_own_error(shared):
    for clip, transcript, kind in [
        (CLIP, "refuse VoiceError", VoiceError),
        (CLIP, "refuse OverloadedError", OverloadedError),
        (CLIP, [], RequestError),
        (b"no audio", None, VoiceError),
        ((CLIP[0][:10], 16000), None, VoiceError),
    ]:
        with pytest.raises(kind):
            shared.clone(clip, transcript)


def test_progress_is_told_and_requests_wait_meanwhile(tmp_path):
    """The environment reaches the new process: its stage's name comes from there."""
    told, gate = [], tmp_path / "gate"
    fake = functools.partial(build_fake, FakeConfig(gate=str(gate)))
    engine = EngineClient(
        fake, CONFIG, environment={"FAKE_STAGE": "layers"}, on_progress=lambda *progress: told.append(progress)
    )
    with pytest.raises(OverloadedError, match="starting"):
        speak(engine, "say 1")
    gate.touch()
    engine.wait_ready(WAIT_S)
    assert told == [("start", 0, 1), ("layers", 1, 3), ("layers", 2, 3), ("layers", 3, 3)]
    engine.stop()


def test_stop_cancels_what_runs():
    engine = started()
    heard = [speak(engine, LONG, seed) for seed in (1, 2)]
    eventually(lambda: all(one.chunks for one in heard))
    engine.stop()
    for one in heard:
        assert one.end(0).finish_reason == "cancelled"
        one.check()
    with pytest.raises(EngineError, match="stopped"):
        speak(engine, "say 1")
    engine.stop()  # once more is no error


def test_stop_drains_what_may_finish():
    """Its text comes to an end only after the engine was told to stop."""
    engine, heard = started(), Heard(1)
    utterance = engine.submit(SpeechRequest(text="say 20", seed=1), heard, streaming_text=True)
    stopping = threading.Thread(target=engine.stop, args=(WAIT_S,))
    stopping.start()
    eventually(lambda: engine.health.state == "stopping")
    engine.tell(utterance, AppendText("say 30"))
    engine.tell(utterance, EndText())
    stopping.join(WAIT_S)
    assert heard.end(0).finish_reason == "stop" and len(heard.chunks) == 51
    heard.check()


def test_stop_kills_an_engine_that_does_not_listen():
    engine = started(replace(CONFIG, terminate_s=0.3))
    pid = engine.health.pid
    heard = speak(engine, "say 3 hang loop")
    eventually(lambda: len(heard.chunks) == 3)
    engine.stop()
    assert heard.end(0).finish_reason == "cancelled" and gone(pid)


def test_stop_leaves_no_process_thread_descriptor_or_file(tmp_path, monkeypatch):
    def kept() -> tuple[int, int, int, list[Path]]:
        children = Path("/proc/self/task").glob("*/children")
        return (
            len(os.listdir("/proc/self/fd")),
            len(os.listdir("/proc/self/task")),
            sum(len(file.read_text().split()) for file in children),
            list(tmp_path.iterdir()),
        )

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    time.sleep(0.2)  # the kernel takes a moment to forget the threads of the tests before
    before = kept()
    for crash in (False, True):
        engine = started()
        assert list(tmp_path.iterdir()) == []  # removed as soon as both sides are connected
        if crash:
            speak_and_then(engine, "die kill").end()
            engine.wait_ready(WAIT_S)
        speak(engine, "say 10").end()
        engine.stop()
    engine = EngineClient(functools.partial(build_fake, FakeConfig(build_s=600)), CONFIG)  # while it starts
    eventually(lambda: engine.health.pid is not None)
    engine.stop()
    eventually(lambda: all(now <= then for now, then in zip(kept(), before, strict=True)))
