from dataclasses import replace

import numpy as np
import pytest

from oscine.engine.remote import messages as wire
from oscine.types import (
    AppendText,
    AudioChunk,
    Cancel,
    CheckpointError,
    ConfigError,
    EndText,
    EngineError,
    EngineStatus,
    OscineError,
    OverloadedError,
    RequestError,
    SpeechRequest,
    TickHistogram,
    TooLongError,
    Usage,
    VoiceError,
)
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
REPORT = wire.ErrorReport("VoiceError", "no such voice", "voice", None)
SPEAKER = np.linspace(-1, 1, 64, dtype=np.float32)
CODES = np.arange(5 * 16, dtype=np.int64).reshape(5, 16)


def over_the_wire(request: SpeechRequest) -> SpeechRequest:
    message = wire.decode_for_engine(wire.encode(wire.submit_message("a", request, streaming_text=False)))
    assert isinstance(message, wire.Submit)
    return wire.request_of(message)


@pytest.mark.parametrize(
    "message",
    [
        wire.Submit("a", {"text": b"hi", "seed": 2**64 - 1, "greedy": None, "top_p": 0.5}, None, True),
        wire.Submit("a", {"text": b"\xed\xa0\x80"}, wire.VoiceArrays(b"1234", b"5678", b"said"), False),
        wire.Tell("a", "append", b"more"),
        wire.Tell("a", "end"),
        wire.Tell("a", "cancel"),
        wire.Clone("a", b"1234", 24000, b"said"),
        wire.Clone("a", b"", 24000, None),
        wire.Ping(),
        wire.Stop(1.5),
    ],
)
def test_what_the_front_end_says_arrives_as_it_was(message):
    assert wire.decode_for_engine(wire.encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        wire.Progress("weights", 3, 10),
        wire.Ready(STATUS),
        wire.Failed(REPORT),
        wire.Accepted("a"),
        wire.Cloned("a", wire.VoiceArrays(b"1234", None, None)),
        wire.Cloned("a", None, REPORT),
        wire.Refused("a", REPORT),
        wire.Chunk("a", b"\x00\xff" * 1920, 2**40, None, None, 2**64 - 1),
        wire.Chunk("a", b"", 7, "error", REPORT, 0),
        wire.Chunk("a", b"", 7, "stop", None, 0, Usage(12, 345)),
        wire.Pong(STATUS),
    ],
)
def test_what_the_engine_says_arrives_as_it_was(message):
    assert wire.decode_for_front_end(wire.encode(message)) == message


@pytest.mark.parametrize(
    "request_",
    [
        SpeechRequest(text="Hallo, 你好 🙂"),
        SpeechRequest(text="", voice="ryan", language="german", instruct="slowly", text_mode="streaming", seed=2**63),
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
def test_a_request_arrives_as_it_was_right_or_wrong(request_):
    assert over_the_wire(request_) == request_


def test_a_cloned_voice_keeps_its_content_hash():
    voice = Voice(SPEAKER, CODES, "what was said")
    assert over_the_wire(SpeechRequest(text="x", voice=voice)).voice.content_hash == voice.content_hash


def test_numpy_numbers_become_plain_ones():
    request = SpeechRequest(text="x", seed=np.int64(7), temperature=np.float32(0.5))
    assert over_the_wire(request) == SpeechRequest(text="x", seed=7, temperature=0.5)


@pytest.mark.parametrize(("name", "value"), [("seed", 2**64), ("top_k", [1]), ("text", b"x"), ("voice", object())])
def test_what_cannot_travel_is_refused_by_name(name, value):
    with pytest.raises(RequestError, match=name) as caught:
        wire.submit_message("a", replace(SpeechRequest(text="x"), **{name: value}), streaming_text=False)
    assert caught.value.param == name


@pytest.mark.parametrize("command", [AppendText("more"), AppendText("\ud800"), EndText(), Cancel()])
def test_commands_arrive_as_they_were(command):
    message = wire.decode_for_engine(wire.encode(wire.tell_message("a", command)))
    assert isinstance(message, wire.Tell) and wire.command_of(message) == command


@pytest.mark.parametrize("piece", [None, 3, b"more"])
def test_a_piece_of_text_that_is_no_string_is_refused_as_the_engine_would(piece):
    with pytest.raises(RequestError, match=f"^text must be a string, got {type(piece).__name__}$") as caught:
        wire.tell_message("a", AppendText(piece))
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
def test_errors_keep_class_text_and_values(error):
    chunk = AudioChunk(b"", 5, "error", error, 3, Usage(7, 9))
    message = wire.decode_for_front_end(wire.encode(wire.chunk_message("a", chunk)))
    assert isinstance(message, wire.Chunk)
    arrived = wire.chunk_of(message)
    assert (arrived.first_sample, arrived.finish_reason, arrived.seed, arrived.usage) == (5, "error", 3, Usage(7, 9))
    assert type(arrived.error) is type(error) and str(arrived.error) == str(error)
    assert vars(arrived.error) == vars(error)


def test_a_stranger_becomes_an_engine_error_and_a_subclass_its_parent():
    class OwnVoiceError(VoiceError):
        pass

    assert str(wire.error_of(wire.report_of(KeyError("x")))) == "KeyError: 'x'"
    assert type(wire.error_of(wire.report_of(KeyError("x")))) is EngineError
    assert type(wire.error_of(wire.report_of(OwnVoiceError("a \ud800", "voice")))) is VoiceError
    assert wire.encode(wire.Failed(wire.report_of(VoiceError("half \ud800"))))
