import asyncio
import contextlib
import functools
import os
import signal
import threading

import numpy as np
import pytest

from oscine.config import WorkerConfig
from oscine.engine.remote.client import EngineClient
from oscine.engine.router import Router
from oscine.errors import ConfigError, EngineError, OverloadedError, RequestError, VoiceError, clear_tracebacks
from oscine.request import SpeechRequest
from oscine.types import AppendText, AudioChunk, EngineStatus, TickHistogram
from oscine.voice import Voice
from tests.engine.recorder import WAIT_S, submit
from tests.engine.remote.fake_engine import FakeConfig, build_fake
from tests.garbage import garbage_of
from tests.manual_engine import ManualEngine


class Counted(ManualEngine):
    """Counts only: `running` is its load."""

    def __init__(self, running=0, *, ready=True, error=None, slots=4, real_time=6):
        super().__init__(slots, error)
        self.running, self.ready, self.real_time = running, ready, real_time
        self.clones, self.stopped = [], []

    async def submit(self, *arguments, **options):
        await super().submit(*arguments, **options)
        self.running += 1

    def clone(self, clip, transcript=None):
        voice = super().clone(clip, transcript)
        self.clones.append((clip, transcript))
        return voice

    def status(self):
        active = min(self.running, self.slots)
        tick_s, ticks = 0.001 * (1 + self.running), TickHistogram((1, 2, *[0] * 13), 0.5)
        queued, counts = self.running - active, (100, tick_s, ticks, 1, 2, 3, 4, 5)
        return EngineStatus(self.ready, self.slots, active, queued, *counts, "CPU", self.real_time)

    def stop(self, drain_s=0.0):
        self.stopped.append(drain_s)
        if self.error is not None:
            raise self.error


def speak(router, voice=None, text="x"):
    """The index of the engine that was chosen."""
    utterance_id = submit(router, SpeechRequest(text=text, voice=voice), lambda chunk: None)
    return next(index for index, engine in enumerate(router.engines) if utterance_id in engine.utterances)


def test_the_least_loaded_engine_is_chosen():
    engines = [Counted(3), Counted(1), Counted(6)]
    speak(Router(engines))
    assert [len(engine.requests) for engine in engines] == [0, 1, 0]


def test_of_engines_with_different_slots_the_one_with_more_room_is_chosen():
    small, large = Counted(13, slots=13, real_time=100), Counted(14, slots=32, real_time=100)
    speak(Router([small, large]))
    assert (small.running, large.running) == (13, 15)


def test_equal_engines_take_turns():
    engines = [Counted() for _ in range(3)]
    router = Router(engines)
    for _ in range(30):
        speak(router)
    assert [engine.running for engine in engines] == [10, 10, 10]


def test_callers_at_the_same_moment_do_not_choose_the_same():
    class Slow(Counted):
        async def submit(self, *arguments, **options):
            barrier.wait(WAIT_S)
            await super().submit(*arguments, **options)

    barrier = threading.Barrier(16)  # all callers choose before any engine counts one
    engines = [Slow() for _ in range(4)]
    router = Router(engines)
    threads = [threading.Thread(target=speak, args=(router,)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [engine.running for engine in engines] == [4, 4, 4, 4]


@pytest.mark.parametrize(
    "voices",
    [("ryan", "Ryan"), tuple(Voice(np.ones(8, np.float32)) for _ in range(2))],
    ids=["preset", "cloned"],
)
def test_a_voice_stays_with_its_engine_within_the_margin(voices):
    engines = [Counted(), Counted()]
    router = Router(engines, affinity_margin=2)
    assert [speak(router, voices[turn % 2]) for turn in range(3)] == [0, 0, 0]
    assert speak(router, voices[0]) == 1  # three more than the other engine: too many
    assert speak(router, voices[0]) == 1  # the voice now belongs to this engine


@pytest.mark.parametrize(("max_voices", "engine"), [(3, 0), (2, 1)])
def test_the_number_of_remembered_voices_is_bounded(max_voices, engine):
    router = Router([Counted(), Counted()], affinity_margin=10, max_voices=max_voices)
    assert [speak(router, voice) for voice in ("one", "two", "three")] == [0, 1, 0]
    assert speak(router, "one") == engine  # forgotten, it goes to the least loaded one


def test_an_engine_that_is_not_ready_is_left_out():
    engines = [Counted(0, ready=False), Counted(50)]
    speak(Router(engines))
    assert [len(engine.requests) for engine in engines] == [0, 1]


def test_an_engine_that_fails_or_is_full_is_passed_over():
    engines = [Counted(0, error=EngineError("gone")), Counted(1, error=OverloadedError("full", 1.0)), Counted(2)]
    assert speak(Router(engines)) == 2


class Refusing(Counted):
    """`error` makes a new error for each submission."""

    async def submit(self, *arguments, **options):
        raise self.error()


@pytest.mark.parametrize("kind", [functools.partial(OverloadedError, retry_after_s=1.0), EngineError])
@pytest.mark.parametrize("speaking", [0, 1])
def test_engines_that_refuse_leave_nothing_for_the_garbage_collector(kind, speaking):
    engines = [Refusing(error=functools.partial(kind, "refused")) for _ in range(2)]
    engines += [Counted(1) for _ in range(speaking)]
    router, asked = Router(engines), []

    def request():
        try:
            asked.append("x")
            runner.run(router.submit(str(len(asked)), SpeechRequest(text="x"), lambda chunk: None))
        except (OverloadedError, EngineError) as error:
            clear_tracebacks(error)  # as a server does that has answered it

    with asyncio.Runner() as runner:
        assert garbage_of(request) < 20
    assert sum(len(engine.requests) for engine in engines) == len(asked) * speaking


def test_overloaded_only_if_all_are_and_with_the_shortest_wait():
    waits = [Counted(error=OverloadedError("full", wait_s)) for wait_s in (4.0, 1.5, 3.0)]
    with pytest.raises(OverloadedError) as caught:
        speak(Router([*waits, Counted(ready=False), Counted(error=EngineError("gone"))]))
    assert caught.value.retry_after_s == 1.5


def test_no_engine_ready_is_an_engine_error():
    with pytest.raises(EngineError, match="none of 2 engines is ready"):
        speak(Router([Counted(ready=False), Counted(ready=False)]))
    with pytest.raises(EngineError, match="gone"):
        speak(Router([Counted(error=EngineError("gone"))]))
    with pytest.raises(ConfigError):
        Router([])


def test_a_wrong_request_is_not_tried_elsewhere():
    engines = [Counted(0, error=RequestError("bad", "text")), Counted(5)]
    router = Router(engines)
    with pytest.raises(RequestError) as caught:
        speak(router)
    assert caught.value.param == "text" and engines[1].running == 5
    engines[0].error, engines[0].running = None, 4
    assert speak(router) == 0, "the wrong request does not count as one that is entering"


def test_commands_reach_the_engine_that_speaks():
    engines = [Counted(), Counted()]
    router = Router(engines)
    ids = [submit(router, SpeechRequest(text="x"), lambda chunk: None) for _ in range(4)]
    for utterance_id in [*ids, "", "unknown"]:
        router.send(utterance_id, AppendText("more"))
    assert [[one for one, _ in engine.commands] for engine in engines] == [ids[::2], ids[1::2]]
    assert [engine.utterances for engine in engines] == [ids[::2], ids[1::2]]


def test_an_utterance_that_was_refused_or_has_ended_is_forgotten():
    class Ending(Counted):
        async def submit(self, utterance_id, request, deliver, *, streaming_text=False):
            deliver(AudioChunk(b"", 0, "stop"))

    for engine in (Ending(), Counted(error=OverloadedError("full", 1.0))):
        router = Router([engine])
        with contextlib.suppress(OverloadedError):
            asyncio.run(router.submit("one", SpeechRequest(text="x"), lambda chunk: None))
        router.send("one", AppendText("more"))
        assert not engine.commands


def test_any_ready_engine_clones_a_voice():
    engines = [Counted(0, ready=False), Counted(1, error=EngineError("gone")), Counted(2)]
    router = Router(engines)
    assert router.clone(b"clip", "words") == Voice(np.ones(8, np.float32))
    assert [engine.clones for engine in engines] == [[], [], [(b"clip", "words")]]
    engines[1].error, engines[2].running = None, 1
    assert [speak(router) for _ in range(4)] == [1, 2, 1, 2], "no clone counts as a request that is entering"
    engines[1].error = VoiceError("silent", "ref_audio")
    with pytest.raises(VoiceError, match="silent"):
        router.clone(b"clip")
    with pytest.raises(EngineError, match="none of 1 engines"):
        Router([Counted(ready=False)]).clone(b"clip")


def test_any_ready_engine_has_the_vector_of_a_preset():
    engines = [Counted(0, ready=False), Counted(1, error=EngineError("gone")), Counted(2)]
    assert Router(engines).preset("ryan") == Voice(np.full(8, 4, np.float32))
    with pytest.raises(EngineError, match="gone"):
        Router(engines[:2]).preset("ryan")


def test_status_sums_what_is_ready_and_stop_reaches_all():
    engines = [Counted(5), Counted(2), Counted(9, ready=False)]
    router = Router(engines)
    ticks = TickHistogram((2, 4, *[0] * 13), 1.0)
    assert router.status() == EngineStatus(True, 8, 6, 1, 200, 0.006, ticks, 2, 4, 6, 8, 10, "2 x CPU", 12)
    engines[0].error = EngineError("would not")
    with pytest.raises(EngineError, match="would not"):
        router.stop(1.5)
    assert [engine.stopped for engine in engines] == [[1.5]] * 3
    assert Router([Counted(ready=False)]).status() == EngineStatus(False, 0, 0, 0, 0, 0.0)


def test_with_two_workers_one_may_die():
    build = functools.partial(build_fake, FakeConfig())
    engines = [EngineClient(build, WorkerConfig(backoff_s=30.0, terminate_s=2.0)) for _ in range(2)]
    for engine in engines:
        engine.wait_ready(WAIT_S)
    router = Router(engines)
    reasons: list[str | None] = []
    ended = threading.Semaphore(0)

    def deliver(chunk):
        if chunk.finish_reason:
            reasons.append(chunk.finish_reason)
            ended.release()

    for _ in range(4):
        submit(router, SpeechRequest(text="say 100000", voice="ryan"), deliver)
    os.kill(engines[0].health.pid, signal.SIGKILL)
    assert all(ended.acquire(timeout=WAIT_S) for _ in range(4)) and reasons == ["error"] * 4  # all were on that engine
    assert router.status().ready and not engines[0].status().ready
    for _ in range(10):
        submit(router, SpeechRequest(text="say 2", voice="ryan"), deliver)
    assert all(ended.acquire(timeout=WAIT_S) for _ in range(10)) and reasons[4:] == ["stop"] * 10
    router.stop(5.0)
