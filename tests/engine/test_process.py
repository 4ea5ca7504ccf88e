"""The engine in its own process, while it works: exact, in order, one listener never at the cost of another."""

import functools
import os
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.engine.fake_engine import CHUNK_SAMPLES, FakeConfig, FakeEngine, build_fake, refusal
from tests.engine.listening import CONFIG, IMPATIENT, LONG, Heard, eventually, gone, speak, started

from oscine.engine import messages as wire
from oscine.engine.channel import Channel
from oscine.engine.child import serve_engine
from oscine.engine.process import EngineProcess
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
    utterance = shared.submit(SpeechRequest(text="say 2", seed=5), heard, text_open=True)
    shared.tell(utterance, AppendText("say 3"))
    eventually(lambda: len(heard.chunks) == 5)
    assert not heard.ended.is_set()
    shared.tell(utterance, EndText())
    assert heard.end().finish_reason == "stop"
    heard.check()
    for command in (AppendText("x"), EndText(), Cancel()):
        shared.tell(utterance, command)
        shared.tell("nobody", command)


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
    assert not shared._utterances and len(os.listdir("/proc/self/fd")) == descriptors
    eventually(lambda: shared._status.slots_active + shared._status.queued == 0)  # as the child itself tells


def test_a_slow_listener_does_not_hold_up_the_others(shared):
    """Two delivery threads: one slow listener costs the others nothing; with more, they wait one call of each."""
    slow = speak(shared, "say 20", 1, sleep_s=0.1)
    quick = [speak(shared, "say 20", seed) for seed in range(2, 8)]
    began_s = time.monotonic()
    for one in quick:
        assert one.end().finish_reason == "stop"
        one.check()
    assert time.monotonic() - began_s < 1.0 and not slow.ended.is_set()
    slow.end()
    slow.check()


def test_more_slow_listeners_than_threads_delay_the_others_by_one_call_each(shared):
    slow = [speak(shared, "say 10", seed, sleep_s=0.05) for seed in range(3)]
    quick = speak(shared, "say 10", 9)
    quick.end()
    # 11 chunks, before each of them at most one call of each slow listener on two threads.
    assert len(slow[0].chunks) < 11
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
    eventually(lambda: shared._status.slots_active == 0)
    assert [record.exc_info[1].args for record in caplog.records] == [("the listener has left",)]


CLIP = (np.full(16000, 0.5, np.float32), 16000)


@pytest.mark.parametrize("transcript", [None, "what was said", "\ud800"])
def test_a_voice_travels_as_it_is(shared, transcript):
    assert shared.clone(CLIP, transcript) == FakeEngine().clone(CLIP, transcript)
    assert not shared._clonings


def test_a_voice_in_the_making_holds_nobody_up(shared):
    with ThreadPoolExecutor(2) as pool:
        voices = [pool.submit(shared.clone, CLIP, "sleep 0.5") for _ in range(2)]  # one after the other
        time.sleep(0.1)
        heard = speak(shared, "say 20")
        assert heard.end().finish_reason == "stop" and not any(voice.done() for voice in voices)
        assert [voice.result(5).transcript for voice in voices] == ["sleep 0.5"] * 2


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


def test_progress_is_told_and_requests_wait_meanwhile():
    """The environment reaches the new process: its stage's name comes from there."""
    told = []
    fake = functools.partial(build_fake, FakeConfig(build_s=0.3))
    engine = EngineProcess(
        fake, CONFIG, environment={"FAKE_STAGE": "layers"}, on_progress=lambda *progress: told.append(progress)
    )
    with pytest.raises(OverloadedError, match="starting"):
        speak(engine, "say 1")
    engine.wait_ready(20)
    assert told == [("start", 0, 1), ("layers", 1, 3), ("layers", 2, 3), ("layers", 3, 3)]
    engine.stop()


@pytest.mark.parametrize("drain_s", [0.0, 5.0])
def test_stop_drains_what_may_finish_and_cancels_the_rest(drain_s):
    engine = started()
    short = speak(engine, "say 200", 1)
    heard = [short] if drain_s else [short, speak(engine, LONG, 2)]
    eventually(lambda: all(one.chunks for one in heard))
    engine.stop(drain_s)
    assert [one.end(0).finish_reason for one in heard] == (["stop"] if drain_s else ["cancelled"] * 2)
    for one in heard:
        one.check()
    with pytest.raises(EngineError, match="stopped"):
        speak(engine, "say 1")
    engine.stop()  # once more is no error


def test_stop_kills_an_engine_that_does_not_listen():
    engine = started(IMPATIENT)
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
    time.sleep(0.2)  # the kernel takes a moment to forget a thread
    before = kept()
    for crash in (False, True):
        engine = started()
        assert list(tmp_path.iterdir()) == []  # removed as soon as both sides are connected
        if crash:
            speak(engine, "say 3 die kill").end()
            engine.wait_ready(10)
        speak(engine, "say 10").end()
        engine.stop()
    engine = EngineProcess(functools.partial(build_fake, FakeConfig(build_s=20)), CONFIG)  # while it starts
    eventually(lambda: engine.health.pid is not None)
    engine.stop()
    time.sleep(0.2)
    assert kept() == before


def test_a_front_end_that_does_not_read_never_blocks_the_engine(tmp_path):
    """The server side alone, in this process: what is not taken is bounded, then the utterances are ended."""
    address, engine = f"ipc://{tmp_path}/line", FakeEngine(FakeConfig(tick_s=0.0))
    front = Channel(address, bind=True)
    server = threading.Thread(
        target=lambda: serve_engine(address, lambda progress: engine, backlog_bytes=9999), daemon=True
    )
    server.start()
    heard: list[wire.ToFrontEnd] = []

    def read_until(enough) -> None:
        deadline_s = time.monotonic() + 10
        while not enough():
            assert time.monotonic() < deadline_s
            heard.extend(wire.decode_for_front_end(packed) for packed in front.turn(0.05)[0])

    def ends() -> dict[str, str]:
        chunks = [message for message in heard if isinstance(message, wire.Chunk)]
        return {chunk.utterance_id: chunk.finish_reason for chunk in chunks if chunk.finish_reason}

    read_until(lambda: any(isinstance(message, wire.Ready) for message in heard))
    for number in range(4):
        front.post(wire.encode(wire.submit_message(str(number), SpeechRequest(text=LONG, seed=number), False)))
    front.turn(0.1)
    eventually(lambda: len(engine.tell_log) == 4 and engine.status().slots_active == 0)  # cancelled, not blocked
    read_until(lambda: len(ends()) == 4)
    front.post(wire.encode(wire.submit_message("later", SpeechRequest(text="say 1"), False)))
    read_until(lambda: len(ends()) == 5)
    assert ends() == {**{str(number): "error" for number in range(4)}, "later": "stop"}
    for number in range(4):
        chunks = [one for one in heard if isinstance(one, wire.Chunk) and one.utterance_id == str(number)]
        assert [one.first_sample for one in chunks] == [CHUNK_SAMPLES * index for index in range(len(chunks))]
        assert [one.finish_reason is None for one in chunks] == [True] * (len(chunks) - 1) + [False]
    front.post(wire.encode(wire.Stop(0.0)))
    front.turn(0.1)
    server.join(10)
    assert not server.is_alive()
    front.close()
