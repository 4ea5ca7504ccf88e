"""EngineClient over a worker with a fake engine: audio is exact and in order, errors arrive, stop leaves nothing."""

import asyncio
import functools
import os
import tempfile
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from oscine.engine.remote.client import EngineClient
from oscine.errors import EngineError, OverloadedError, RequestError, VoiceError
from oscine.request import SpeechRequest
from oscine.types import AppendText, AudioChunk, Cancel, EndText
from tests.engine.recorder import WAIT_S, submit, wait_until
from tests.engine.remote.fake_engine import FakeConfig, FakeEngine, build_fake, refusal
from tests.engine.remote.helpers import (
    CONFIG,
    LONG,
    SampleRecorder,
    gone,
    speak,
    speak_and_then,
    started,
    wait_until_idle,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared():
    engine = started()
    yield engine
    assert engine.health.restarts == 0, engine.health
    engine.stop()


def test_many_utterances_interleaved_arrive_exact_and_in_order(shared):
    with ThreadPoolExecutor(8) as pool:
        recorders = list(pool.map(lambda seed: speak(shared, f"say {seed % 7 * 10}", seed), range(1, 65)))
    for one in recorders:
        assert one.last().finish_reason == "stop" and one.last().seed == one.seed
        one.check()
        assert len(one.chunks) == one.seed % 7 * 10 + 1


@pytest.mark.parametrize(
    "kind",
    ["RequestError", "VoiceError", "TooLongError", "OverloadedError", "EngineError", "ConfigError", "ValueError"],
)
def test_a_refused_request_keeps_its_error(shared, kind):
    expected = EngineError("ValueError: a stranger") if kind == "ValueError" else refusal(kind)
    recorder = SampleRecorder()
    with pytest.raises(type(expected)) as caught:
        submit(shared, SpeechRequest(text=f"refuse {kind}"), recorder)
    assert type(caught.value) is type(expected) and str(caught.value) == str(expected)
    assert vars(caught.value) == vars(expected)
    assert not recorder.chunks and speak(shared, "say 1").last().finish_reason == "stop"


def test_no_thread_waits_for_an_answer_or_delivers(shared):
    recorder, threads = SampleRecorder(3), threading.active_count()
    submit(shared, SpeechRequest(text="say 4", seed=3), recorder)
    assert recorder.last().finish_reason == "stop" and threading.active_count() == threads
    recorder.check()


def test_a_cancelled_submit_cancels_its_utterance(shared):
    async def leave() -> None:
        submitting = asyncio.ensure_future(shared.submit("left", SpeechRequest(text=LONG), SampleRecorder()))
        await asyncio.sleep(0)  # the request is sent
        submitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitting

    asyncio.run(leave())
    assert shared.status().slots_active == shared.status().queued == 0
    assert speak(shared, "say 1").last().finish_reason == "stop"  # the worker has handled the cancel before


def test_a_worker_that_does_not_answer_an_event_loop_in_time_is_an_error():
    engine = started(replace(CONFIG, submit_s=0.2, heartbeat_s=60.0, terminate_s=0.3))
    with pytest.raises(EngineError, match=r"did not answer within 0\.2 s"):
        submit(engine, SpeechRequest(text="hang submit"), SampleRecorder())
    assert engine.status().load == 0
    engine.stop()


def test_text_can_be_appended_and_commands_after_the_end_are_no_error(shared):
    recorder = SampleRecorder(5)
    utterance = submit(shared, SpeechRequest(text="say 2", seed=5), recorder, streaming_text=True)
    shared.send(utterance, AppendText("say 3"))
    wait_until(lambda: len(recorder.chunks) == 5)
    assert not recorder.ended.is_set()
    shared.send(utterance, EndText())
    assert recorder.last().finish_reason == "stop"
    recorder.check()
    for command in (AppendText("x"), EndText(), Cancel()):
        shared.send(utterance, command)
        shared.send("unknown", command)


def test_appended_text_that_cannot_be_spoken_ends_its_utterance_only(shared):
    recorder = SampleRecorder()
    utterance = submit(shared, SpeechRequest(text="say 2"), recorder, streaming_text=True)
    shared.send(utterance, AppendText("\0"))
    assert isinstance(recorder.last().error, RequestError) and str(recorder.last().error) == "the text holds a NUL"
    wait_until_idle(shared)
    assert speak(shared, "say 1").last().finish_reason == "stop"


def test_status_counts_submits_and_ends_at_once(shared):
    recorders, ids = [SampleRecorder() for _ in range(12)], []
    for one in recorders:
        ids.append(submit(shared, SpeechRequest(text=LONG), one))
        status = shared.status()
        assert status.ready and status.slots == 8 and status.slots_active + status.queued == len(ids)
    for utterance in ids:
        shared.send(utterance, Cancel())
    assert [one.last().finish_reason for one in recorders] == ["cancelled"] * 12
    assert shared.status().slots_active + shared.status().queued == 0
    wait_until(lambda: shared.status().frames > 0)  # with the next heartbeat


def test_200_submits_and_cancels_leave_nothing_behind(shared):
    def once(number: int) -> SampleRecorder:
        recorder = SampleRecorder(number)
        utterance = submit(shared, SpeechRequest(text=LONG, seed=number), recorder)
        time.sleep(number % 5 * 0.001)
        shared.send(utterance, Cancel())
        return recorder

    descriptors = len(os.listdir("/proc/self/fd"))
    with ThreadPoolExecutor(4) as pool:
        for recorder in pool.map(once, range(200)):
            assert recorder.last().finish_reason == "cancelled"
            recorder.check()
    assert shared.status().load == 0 and len(os.listdir("/proc/self/fd")) <= descriptors
    wait_until_idle(shared)


def test_a_callback_that_raises_cancels_its_utterance_only(shared, caplog):
    def broken(chunk: AudioChunk) -> None:
        raise RuntimeError("the client has left")

    submit(shared, SpeechRequest(text=LONG), broken)
    other = speak(shared, "say 30", 3)
    assert other.last().finish_reason == "stop"
    wait_until(lambda: shared.status().load == 0)
    wait_until_idle(shared)
    assert [record.exc_info[1].args for record in caplog.records] == [("the client has left",)]


CLIP = (np.full(16000, 0.5, np.float32), 16000)


@pytest.mark.parametrize("transcript", [None, "what was said", "\ud800"])
def test_a_cloned_voice_arrives_unchanged(shared, transcript):
    voice = shared.clone(CLIP, transcript)
    assert voice == FakeEngine().clone(CLIP, transcript)
    held = weakref.ref(voice.speaker)
    del voice
    assert held() is None, "the client keeps no voice"


def test_a_presets_vector_arrives_and_an_unknown_name_is_refused(shared):
    assert shared.preset("ryan") == FakeEngine().preset("ryan")
    with pytest.raises(VoiceError, match="unknown voice 'stranger'"):
        shared.preset("stranger")


def test_cloning_delays_no_stream(shared, tmp_path):
    begun, words = tmp_path / "begun", f"hold {tmp_path}"
    with ThreadPoolExecutor(2) as pool:
        voices = [pool.submit(shared.clone, CLIP, words) for _ in range(2)]
        wait_until(begun.exists)
        recorder = speak(shared, "say 20")
        assert recorder.last().finish_reason == "stop" and not any(voice.done() for voice in voices)
        assert begun.read_text() == "begun\n"  # one at a time
        (tmp_path / "go_on").touch()
        assert [voice.result(WAIT_S).transcript for voice in voices] == [words] * 2


def test_a_clip_that_cannot_be_cloned_keeps_its_error(shared):
    for clip, transcript, kind in [
        (CLIP, "refuse VoiceError", VoiceError),
        (CLIP, "refuse OverloadedError", OverloadedError),
        (CLIP, [], RequestError),
        (b"no audio", None, VoiceError),
        ((CLIP[0][:10], 16000), None, VoiceError),
    ]:
        with pytest.raises(kind):
            shared.clone(clip, transcript)


def test_progress_is_reported_and_requests_are_refused_during_the_build(tmp_path):
    """The environment reaches the worker, which reads the name of its stage from there."""
    reported, wait_for = [], tmp_path / "wait_for"
    fake = functools.partial(build_fake, FakeConfig(wait_for=str(wait_for)))
    engine = EngineClient(
        fake, CONFIG, environment={"FAKE_STAGE": "layers"}, on_progress=lambda *progress: reported.append(progress)
    )
    with pytest.raises(OverloadedError, match="starting"):
        speak(engine, "say 1")
    wait_for.touch()
    engine.wait_ready(WAIT_S)
    assert reported == [("start", 0, 1), ("layers", 1, 3), ("layers", 2, 3), ("layers", 3, 3)]
    engine.stop()


def test_stop_cancels_running_utterances():
    engine = started()
    recorders = [speak(engine, LONG, seed) for seed in (1, 2)]
    wait_until(lambda: all(one.chunks for one in recorders))
    engine.stop()
    for one in recorders:
        assert one.last().finish_reason == "cancelled"
        one.check()
    with pytest.raises(EngineError, match="stopped"):
        speak(engine, "say 1")
    engine.stop()  # a second stop is no error


def test_stop_lets_utterances_finish_while_it_drains():
    """The text ends after stop was called."""
    engine, recorder = started(), SampleRecorder(1)
    utterance = submit(engine, SpeechRequest(text="say 20", seed=1), recorder, streaming_text=True)
    stopping = threading.Thread(target=engine.stop, args=(WAIT_S,))
    stopping.start()
    wait_until(lambda: engine.health.state == "stopping")
    engine.send(utterance, AppendText("say 30"))
    engine.send(utterance, EndText())
    stopping.join(WAIT_S)
    assert recorder.last().finish_reason == "stop" and len(recorder.chunks) == 51
    recorder.check()


def test_stop_kills_a_worker_that_does_not_answer():
    engine = started(replace(CONFIG, terminate_s=0.3))
    pid = engine.health.pid
    recorder = speak(engine, "say 3 hang loop")
    wait_until(lambda: len(recorder.chunks) == 3)
    engine.stop()
    assert recorder.last().finish_reason == "cancelled" and gone(pid)


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
    before = kept()
    for crash in (False, True):
        engine = started()
        assert list(tmp_path.iterdir()) == []  # removed as soon as both sides are connected
        if crash:
            speak_and_then(engine, "die kill").last()
            engine.wait_ready(WAIT_S)
        speak(engine, "say 10").last()
        engine.stop()
    engine = EngineClient(functools.partial(build_fake, FakeConfig(build_s=600)), CONFIG)  # while it starts
    wait_until(lambda: engine.health.pid is not None)
    engine.stop()
    wait_until(lambda: all(now <= then for now, then in zip(kept(), before, strict=True)))
