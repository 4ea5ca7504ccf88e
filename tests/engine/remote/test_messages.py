from dataclasses import replace

import numpy as np
import pytest

from oscine.engine.remote import messages as wire
from oscine.errors import (
    CheckpointError,
    ConfigError,
    EngineError,
    OscineError,
    OverloadedError,
    RequestError,
    TooLongError,
    VoiceError,
)
from oscine.request import SpeechRequest
from oscine.types import AppendText, AudioChunk, Cancel, EndText, EngineStatus, TickHistogram, Usage
from oscine.voice import Voice

STATUS = EngineStatus(
    ready=True,
    slots=8,
    slots_active=3,
    queued=1,
    frames=1234,
    tick_s=0.0045,
    ticks=TickHistogram(tuple(range(15)), 1.5),
    underruns=2,
    prefix_hits=3,
    prefix_misses=4,
    prefix_bytes=5,
    memory_bytes=2**40,
)
ERROR = VoiceError("no such voice", "voice")
SPEAKER = np.linspace(-1, 1, 64, dtype=np.float32)
CODES = np.arange(5 * 16, dtype=np.int64).reshape(5, 16)


def sent_to_worker(message: wire.ToWorker) -> wire.ToWorker:
    return wire.decode_to_worker(wire.encode(message))


def sent_from_worker(message: wire.FromWorker) -> wire.FromWorker:
    return wire.decode_from_worker(wire.encode(message))


def sent_request(request: SpeechRequest) -> SpeechRequest:
    message = sent_to_worker(wire.Submit.of("a", request, streaming_text=False))
    assert isinstance(message, wire.Submit)
    return message.request()


def sent_error(error: OscineError) -> OscineError:
    message = sent_from_worker(wire.BuildFailed(error))
    assert isinstance(message, wire.BuildFailed)
    return message.error


@pytest.mark.parametrize(
    "message",
    [
        wire.Submit("a", {"text": b"hi", "seed": 2**64 - 1, "greedy": None, "top_p": 0.5}, True),
        wire.SendCommand("a", "AppendText", (b"more",)),
        wire.Clone("a", b"1234", 24000, b"said"),
        wire.Clone("a", b"", 24000, None),
        wire.Ping(),
        wire.StopWorker(1.5),
    ],
)
def test_messages_of_the_front_end_arrive_unchanged(message):
    assert sent_to_worker(message) == message


@pytest.mark.parametrize(
    "message",
    [
        wire.BuildProgress("weights", 3, 10),
        wire.Ready(STATUS),
        wire.SubmitResult("a"),
        wire.Chunk("a", AudioChunk(b"\x00\xff" * 1920, 2**40, seed=2**64 - 1)),
        wire.Chunk("a", AudioChunk(b"", 7, "stop", None, 0, Usage(12, 345))),
        wire.Pong(STATUS),
    ],
)
def test_messages_of_the_worker_arrive_unchanged(message):
    assert sent_from_worker(message) == message


@pytest.mark.parametrize("voice", [Voice(SPEAKER), Voice(SPEAKER, CODES, "half \ud800 pair")])
def test_a_cloned_voice_arrives_unchanged(voice):
    message = sent_from_worker(wire.CloneResult("a", wire.pack("voice", voice)))
    assert isinstance(message, wire.CloneResult) and message.error is None and wire.unpack(message.voice) == voice


@pytest.mark.parametrize(
    "request_",
    [
        SpeechRequest(text="Hallo, 你好 🙂"),
        SpeechRequest(text="", voice="ryan", language="german", instructions="sad", text_mode="streaming", seed=2**63),
        SpeechRequest(text="x", greedy=True, temperature=0.1, top_k=0, top_p=1.0, repetition_penalty=1.0),
        SpeechRequest(text="x", subtalker_temperature=2, subtalker_top_k=3, subtalker_top_p=0.4, max_new_tokens=2),
        SpeechRequest(text="x", trim_silence=False, continues_s=1.25),
        SpeechRequest(text="x", trim_silence="no", continues_s=float("inf")),  # type: ignore[arg-type]
        SpeechRequest(text="x", voice=Voice(SPEAKER)),
        SpeechRequest(text="x", voice=Voice(SPEAKER, CODES, "what was said")),
        SpeechRequest(text="half \ud800 pair", voice=Voice(SPEAKER, CODES, "half \udc00 pair")),
        SpeechRequest(text="x", temperature=float("inf"), top_k=-5),
        SpeechRequest(text=3, voice=1.5, temperature="hot"),  # type: ignore[arg-type]
    ],
    ids=lambda request: repr(request.text),
)
def test_a_request_arrives_unchanged_valid_or_not(request_):
    assert sent_request(request_) == request_


def test_a_cloned_voice_keeps_its_content_hash():
    voice = Voice(SPEAKER, CODES, "what was said")
    assert sent_request(SpeechRequest(text="x", voice=voice)).voice.content_hash == voice.content_hash


def test_numpy_numbers_become_plain_ones():
    request = SpeechRequest(text="x", seed=np.int64(7), temperature=np.float32(0.5))
    assert sent_request(request) == SpeechRequest(text="x", seed=7, temperature=0.5)


@pytest.mark.parametrize(("name", "value"), [("seed", 2**64), ("top_k", [1]), ("text", b"x"), ("voice", object())])
def test_a_value_that_cannot_be_sent_is_refused_by_name(name, value):
    with pytest.raises(RequestError, match=name) as caught:
        wire.Submit.of("a", replace(SpeechRequest(text="x"), **{name: value}), streaming_text=False)
    assert caught.value.param == name


@pytest.mark.parametrize("command", [AppendText("more"), AppendText("\ud800"), EndText(), Cancel()])
def test_commands_arrive_unchanged(command):
    message = sent_to_worker(wire.SendCommand.of("a", command))
    assert isinstance(message, wire.SendCommand) and message.command() == command


@pytest.mark.parametrize("piece", [None, 3, b"more"])
def test_appended_text_that_is_not_a_string_is_refused_in_the_words_of_the_engine(piece):
    with pytest.raises(RequestError, match=f"^text must be a string, got {type(piece).__name__}$") as caught:
        wire.SendCommand.of("a", AppendText(piece))
    assert caught.value.param == "text"


@pytest.mark.parametrize(
    "error",
    [
        OscineError("root"),
        CheckpointError("no such folder"),
        ConfigError("does not fit"),
        OverloadedError("full", 2.5),
        EngineError("gone"),
        RequestError("bad", "top_k"),
        RequestError("bad"),
        VoiceError("unknown voice", "voice"),
        TooLongError("too long", "text"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_keep_class_text_and_attributes(error):
    message = sent_from_worker(wire.Chunk("a", AudioChunk(b"", 5, "error", error, 3, Usage(7, 9))))
    assert isinstance(message, wire.Chunk)
    chunk = message.chunk
    assert (chunk.first_sample, chunk.finish_reason, chunk.seed, chunk.usage) == (5, "error", 3, Usage(7, 9))
    for arrived in (chunk.error, sent_error(error)):
        assert type(arrived) is type(error) and str(arrived) == str(error) and vars(arrived) == vars(error)


def test_an_error_of_another_module_arrives_as_its_nearest_known_parent():
    class OwnVoiceError(VoiceError):
        pass

    arrived = sent_error(OwnVoiceError("a \ud800", "voice"))
    assert type(arrived) is VoiceError and str(arrived) == "a \\ud800" and arrived.param == "voice"


def test_an_object_that_has_no_encoding_is_refused():
    with pytest.raises(NotImplementedError, match="KeyError"):
        wire.encode(wire.BuildFailed(KeyError("x")))
