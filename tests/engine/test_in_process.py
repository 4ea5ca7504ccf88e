"""The in-process engine with real threads and prompts, over a scripted runner in virtual time."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from oscine.config import TrimConfig
from oscine.errors import EngineError, OverloadedError, RequestError, VoiceError
from oscine.model.config import read_config
from oscine.prompt.builder import PromptBuilder
from oscine.prompt.tokenizer import Tokenizer
from oscine.request import SpeechRequest
from oscine.types import AppendText, AudioChunk, Cancel, EndText, SpeechEngine, Usage
from oscine.voice import Voice
from tests.conftest import CheckpointMaker
from tests.engine.conftest import MakeEngine
from tests.engine.recorder import WAIT_S, ChunkRecorder, speak_whole, submit, wait_until
from tests.engine.scripted_runner import PLAIN, SAMPLES_PER_FRAME, VirtualClock, frames_of


class FrameRecorder(ChunkRecorder):
    @property
    def frames(self) -> list[tuple[int, int, int]]:
        return frames_of(self.pcm)


def seed_of(frames: int, tag: int = 1) -> int:
    return tag * 1000 + frames


def test_a_request_is_spoken(make_engine: MakeEngine) -> None:
    engine: SpeechEngine = make_engine()
    pcm = speak_whole(engine, SpeechRequest(text="Hello there.", seed=seed_of(7)))
    assert len(pcm) == 7 * SAMPLES_PER_FRAME * 2
    status = engine.status()
    assert status.ready and (status.slots, status.slots_active, status.queued) == (4, 0, 0) and status.frames >= 7


def test_many_threads_speak_at_once(make_engine: MakeEngine) -> None:
    engine, listeners = make_engine(), [FrameRecorder() for _ in range(20)]

    def ask(tag: int) -> None:
        submit(engine, SpeechRequest(text="Hello there.", seed=seed_of(20 + tag, tag)), listeners[tag - 1])

    threads = [threading.Thread(target=ask, args=(tag,)) for tag in range(1, 21)]
    for thread in threads:
        thread.start()
    for tag, listener in enumerate(listeners, start=1):
        assert listener.wait() == ["stop"]
        assert [(owner, frame) for owner, frame, _ in listener.frames] == [(tag, frame) for frame in range(20 + tag)]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"text": "  "}, RequestError),
        ({"text": "hi", "voice": "nobody"}, VoiceError),
        ({"text": "hi", "temperature": -1.0}, RequestError),
        ({"text": "hi", "language": "klingon"}, RequestError),
    ],
)
@pytest.mark.parametrize("streaming_text", [False, True])
def test_bad_requests_raise_at_once(
    make_engine: MakeEngine, fields: dict[str, object], error: type[Exception], streaming_text: bool
) -> None:
    engine = make_engine()
    if streaming_text and fields["text"] == "  ":
        return  # more may follow
    with pytest.raises(error):
        submit(engine, SpeechRequest(**fields), FrameRecorder(), streaming_text=streaming_text)  # type: ignore[arg-type]
    assert engine.status().queued == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("continues_s", value) for value in (-0.1, 3601, float("nan"), float("inf"), True, "1", [1])),
        *(("trim_silence", value) for value in (1, "yes", 0.0)),
    ],
)
@pytest.mark.parametrize("streaming_text", [False, True])
def test_delivery_options_are_checked(make_engine: MakeEngine, name: str, value: object, streaming_text: bool) -> None:
    engine = make_engine()
    with pytest.raises(RequestError, match=name) as refused:
        submit(engine, SpeechRequest(text="Hi.", **{name: value}), FrameRecorder(), streaming_text=streaming_text)  # type: ignore[arg-type]
    assert refused.value.param == name and engine.status().queued == 0


def test_a_request_overrides_silence_trimming(make_engine: MakeEngine) -> None:
    loud = dataclasses.replace(PLAIN, trim_silence=TrimConfig(threshold_dbfs=-20.0, keep_ms=0.0, max_frames=3))
    engine = make_engine(loud)
    samples = {
        trim: len(speak_whole(engine, SpeechRequest(text="Hi.", seed=seed_of(9), trim_silence=trim))) // 2
        for trim in (None, True, False)
    }
    assert samples == {None: 6 * SAMPLES_PER_FRAME, True: 6 * SAMPLES_PER_FRAME, False: 9 * SAMPLES_PER_FRAME}


@pytest.mark.parametrize("continues_s", [0, 0.5, 3600.0])
def test_a_full_engine_admits_continuations(make_engine: MakeEngine, continues_s: float) -> None:
    clock, holder, continuing = VirtualClock(), FrameRecorder(), FrameRecorder()
    clock.now_s = 1000.0
    engine = make_engine(dataclasses.replace(PLAIN, queue_limit=0), slots=1, clock=clock)
    utterance_id = submit(engine, SpeechRequest(text="One two three", seed=seed_of(9)), holder, streaming_text=True)
    wait_until(lambda: engine.status().slots_active == 1)
    with pytest.raises(OverloadedError):
        submit(engine, SpeechRequest(text="Hi."), FrameRecorder())
    request = SpeechRequest(text="And so on.", seed=seed_of(4), continues_s=continues_s)
    submit(engine, request, continuing)
    engine.send(utterance_id, Cancel())
    assert continuing.wait() == ["stop"] and len(continuing.frames) == 4
    assert engine.status().underruns == 0, "its clock starts with the submit"
    engine.stop()
    with pytest.raises(EngineError):
        submit(engine, request, FrameRecorder())


def test_every_last_chunk_carries_the_usage(make_engine: MakeEngine, tokenizer: Tokenizer) -> None:
    engine, whole, pieces = make_engine(), FrameRecorder(), FrameRecorder()
    body_ids = tokenizer.encode_turn("assistant", "Hello there, you.").body_ids
    submit(engine, SpeechRequest(text="Hello there, you.", seed=seed_of(30)), whole)
    utterance_id = submit(engine, SpeechRequest(text="Hello there", seed=seed_of(30)), pieces, streaming_text=True)
    engine.send(utterance_id, AppendText(", you."))
    engine.send(utterance_id, EndText())
    for listener in (whole, pieces):
        assert listener.wait() == ["stop"] and listener.chunks[-1].usage == Usage(len(body_ids), 30)


def test_an_overloaded_engine_refuses_with_a_retry_time(make_engine: MakeEngine) -> None:
    engine, holder = make_engine(dataclasses.replace(PLAIN, queue_limit=0), slots=1), FrameRecorder()
    # A streaming text keeps its slot while it waits for more.
    utterance_id = submit(engine, SpeechRequest(text="One two three", seed=seed_of(9)), holder, streaming_text=True)
    wait_until(lambda: engine.status().slots_active == 1)
    with pytest.raises(OverloadedError) as refused:
        submit(engine, SpeechRequest(text="Hi."), FrameRecorder())
    assert refused.value.retry_after_s > 0
    engine.send(utterance_id, Cancel())
    assert holder.wait() == ["cancelled"]
    assert speak_whole(engine, SpeechRequest(text="Hi.", seed=seed_of(3)))


def test_a_cancel_after_the_end_is_no_error(make_engine: MakeEngine) -> None:
    engine, listener = make_engine(), FrameRecorder()
    request = SpeechRequest(text="Hello there.", seed=seed_of(999), max_new_tokens=900)
    utterance_id = submit(engine, request, listener)
    engine.send(utterance_id, Cancel())
    assert listener.wait() in (["cancelled"], ["length"])
    engine.send(utterance_id, Cancel())
    engine.send(utterance_id, AppendText("more"))
    engine.send("never was", EndText())
    assert speak_whole(engine, SpeechRequest(text="Still here.", seed=seed_of(2)))


# --- streaming text ---


def text_ids_of(listener: FrameRecorder) -> list[int]:
    return [text_id for _, _, text_id in listener.frames]


@pytest.mark.parametrize("first", ["", "He", "Hello there, "])
def test_streaming_text_gives_the_same_tokens_as_the_whole_text(
    make_engine: MakeEngine, tokenizer: Tokenizer, first: str
) -> None:
    engine, listener = make_engine(), FrameRecorder()
    whole = "Hello there, how are you today? It's fine."
    rest = whole[len(first) :]
    utterance_id = submit(engine, SpeechRequest(text=first, seed=seed_of(0)), listener, streaming_text=True)
    for char in rest:
        engine.send(utterance_id, AppendText(char))
    engine.send(utterance_id, EndText())
    assert listener.wait() == ["stop"]
    body_ids = tokenizer.encode_turn("assistant", whole).body_ids
    spoken = text_ids_of(listener)
    # The first id is in the prompt; the last frame with text carries its end.
    assert spoken[: len(body_ids) - 1] == body_ids[1:] and len(spoken) == len(body_ids)
    engine.send(utterance_id, AppendText("more"))  # the text is forgotten: no error


def test_a_streaming_text_that_ends_without_a_word_is_an_error(make_engine: MakeEngine) -> None:
    engine, listener = make_engine(), FrameRecorder()
    utterance_id = submit(engine, SpeechRequest(text=" "), listener, streaming_text=True)
    engine.send(utterance_id, AppendText("\n "))
    engine.send(utterance_id, EndText())
    assert listener.wait() == ["error"] and isinstance(listener.chunks[-1].error, RequestError)


def test_a_bad_piece_raises_and_the_utterance_continues(make_engine: MakeEngine) -> None:
    engine, listener = make_engine(), FrameRecorder()
    utterance_id = submit(engine, SpeechRequest(text="Hello", seed=seed_of(3)), listener, streaming_text=True)
    for piece in ("a\0b", "\ud800", 7):
        with pytest.raises(RequestError):
            engine.send(utterance_id, AppendText(piece))  # type: ignore[arg-type]
    engine.send(utterance_id, EndText())
    assert listener.wait() == ["stop"]


def test_text_after_its_end_is_refused(make_engine: MakeEngine) -> None:
    engine, listener = make_engine(), FrameRecorder()
    speaking, released = threading.Event(), threading.Event()

    def hold(chunk: AudioChunk) -> None:  # so that the speech does not end
        listener(chunk)
        speaking.set()
        assert released.wait(WAIT_S)

    utterance_id = submit(engine, SpeechRequest(text="One", seed=seed_of(3)), hold, streaming_text=True)
    engine.send(utterance_id, AppendText(" two"))
    assert speaking.wait(WAIT_S)
    engine.send(utterance_id, EndText())
    with pytest.raises(RequestError, match="has ended"):
        engine.send(utterance_id, AppendText(" more"))
    released.set()
    assert listener.wait() == ["stop"]


def test_a_streaming_text_cannot_use_the_text_mode_whole(make_engine: MakeEngine) -> None:
    with pytest.raises(RequestError, match="text_mode"):
        submit(make_engine(), SpeechRequest(text="Hi", text_mode="whole"), FrameRecorder(), streaming_text=True)


@pytest.mark.parametrize("reference_frames", [2, 9, 40])
def test_in_context_a_streaming_text_gives_the_prompt_of_the_whole_text(
    small_checkpoints: CheckpointMaker, reference_frames: int
) -> None:
    folder = small_checkpoints("0b6", "base")
    config, tokenizer = read_config(folder), Tokenizer.from_folder(folder)
    builder = PromptBuilder(config, tokenizer)
    codes = np.zeros((reference_frames, 16), np.int64)
    voice = Voice(np.zeros(config.talker.stack.width, np.float32), codes, "Said before.")
    request = SpeechRequest(text="A much longer text than the one before it was, and it goes on.", voice=voice)
    whole = builder.build(request)
    turn = tokenizer.encode_turn("assistant", request.text)
    opened = builder.build_streaming(request)
    for known in range(opened.ids_needed, len(turn.body_ids) + 1):
        prompt = opened.build(turn.role_ids, turn.body_ids[:known], ended=False)
        np.testing.assert_array_equal(prompt.text_ids, whole.text_ids)
        np.testing.assert_array_equal(prompt.codec_ids, whole.codec_ids)
        later = [*prompt.trailing_ids, *turn.body_ids[known:], config.tts_eos_id]
        assert later == whole.trailing_ids.tolist()
    ended = opened.build(turn.role_ids, turn.body_ids, ended=True)
    np.testing.assert_array_equal(ended.trailing_ids, whole.trailing_ids)


# --- the end ---


def test_stopping_ends_every_stream(make_engine: MakeEngine) -> None:
    engine, listeners = make_engine(slots=1), [FrameRecorder() for _ in range(3)]
    for listener in listeners:
        submit(engine, SpeechRequest(text="Hello"), listener, streaming_text=True)
    engine.stop()
    assert [listener.wait() for listener in listeners] == [["cancelled"]] * 3
    assert not engine.status().ready
    with pytest.raises(EngineError):
        submit(engine, SpeechRequest(text="Hello"), FrameRecorder())
    engine.stop()


def test_stopping_with_a_drain_lets_speech_finish(make_engine: MakeEngine) -> None:
    engine, listener = make_engine(), FrameRecorder()
    submit(engine, SpeechRequest(text="Hello", seed=seed_of(30)), listener)
    engine.stop(drain_s=WAIT_S)
    assert listener.ends == ["stop"] and len(listener.frames) == 30


def test_the_engines_thread_enters_the_backends_context_and_leaves_it_at_the_end(make_engine: MakeEngine) -> None:
    threads: list[threading.Thread] = []

    @contextlib.contextmanager
    def launching() -> Iterator[None]:
        threads.append(threading.current_thread())
        yield
        threads.append(threading.current_thread())

    engine, listener = make_engine(launching=launching), FrameRecorder()
    submit(engine, SpeechRequest(text="Hello", seed=seed_of(3)), listener)
    assert listener.wait() == ["stop"] and [thread.name for thread in threads] == ["oscine-engine"]
    engine.stop()
    assert threads == [threads[0]] * 2


def test_a_callback_may_stop_the_engine(make_engine: MakeEngine) -> None:
    engine, listener = make_engine(), FrameRecorder()

    def deliver(chunk: AudioChunk) -> None:
        engine.stop()
        listener(chunk)

    submit(engine, SpeechRequest(text="Hello", seed=seed_of(300), max_new_tokens=400), deliver)
    assert listener.wait()[0] in ("cancelled", "stop")


def test_a_dead_runner_makes_the_engine_not_ready(make_engine: MakeEngine) -> None:
    def fail(stage: str, tag: int) -> None:
        if stage == "launch":
            raise EngineError("the device does not answer")

    engine, listener = make_engine(fail=fail), FrameRecorder()
    submit(engine, SpeechRequest(text="Hello", seed=seed_of(5)), listener)
    assert listener.wait() == ["error"] and not engine.status().ready
    with pytest.raises(EngineError, match="does not answer"):
        speak_whole(engine, SpeechRequest(text="Hello"))


def test_a_hanging_runner_makes_the_engine_not_ready(make_engine: MakeEngine) -> None:
    clock, hangs, go_on = VirtualClock(), threading.Event(), threading.Event()

    def fail(stage: str, tag: int) -> None:
        if stage == "collect" and tag == 2:
            hangs.set()
            assert go_on.wait(WAIT_S)

    engine, listener = make_engine(dataclasses.replace(PLAIN, stuck_s=5.0), fail=fail, clock=clock), FrameRecorder()
    speak_whole(engine, SpeechRequest(text="Hello", seed=seed_of(3)))
    clock.now_s += 100.0
    wait_until(lambda: engine.status().ready)  # being idle is not a failure
    submit(engine, SpeechRequest(text="Hello", seed=seed_of(5, tag=2)), listener)
    assert hangs.wait(WAIT_S)
    clock.now_s += 4.9
    assert engine.status().ready
    clock.now_s += 0.2
    assert not engine.status().ready
    go_on.set()
    assert listener.wait() == ["stop"]
    wait_until(lambda: engine.status().ready)


def test_an_idle_engine_sleeps(make_engine: MakeEngine) -> None:
    before = {*threading.enumerate()}
    engine = make_engine()
    speak_whole(engine, SpeechRequest(text="Hello", seed=seed_of(3)))
    (thread,) = (one for one in threading.enumerate() if one.name == "oscine-engine" and one not in before)
    thread_clock = time.pthread_getcpuclockid(thread.ident)  # type: ignore[arg-type]
    used_s = time.clock_gettime(thread_clock)
    time.sleep(0.3)
    assert time.clock_gettime(thread_clock) - used_s < 0.1
