"""The Python API: streaming, batching, caching and saving never change what is spoken."""

import asyncio
import gc
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

import oscine
from oscine import ClipWarning, EngineConfig, Oscine, Speech, SpeechRequest, Turn, Voice, start_engine
from oscine.audio.clips import pcm16, read_clip
from oscine.audio.encoders import encode_whole
from oscine.errors import ConfigError, EngineError, OscineError, RequestError, VoiceError
from oscine.request import VoiceMix
from oscine.speech.events import Audio, Ended, SegmentEnded, SpeechEvent
from oscine.text.segmenter import segment_text
from tests.conftest import CheckpointMaker
from tests.engine.recorder import speak_whole
from tests.file_length import assert_length
from tests.speech_like import speech_like

pytestmark = pytest.mark.slow

RATE = 24000
FRAME = 1920


def clip(seconds: float, seed: int = 0) -> tuple[np.ndarray, int]:
    times = np.arange(int(RATE * seconds)) / RATE
    tone = 0.3 * np.sin(2 * np.pi * (200 + 50 * np.sin(3 * times + seed)) * times)
    return (tone + 0.02 * np.random.default_rng(seed).standard_normal(times.size)).astype(np.float32), RATE


def assert_same(left: Speech, right: Speech) -> None:
    np.testing.assert_array_equal(left.codes, right.codes)
    np.testing.assert_array_equal(left.audio, right.audio)  # to the last bit
    assert (left.finish_reason, left.seed, left.sample_rate) == (right.finish_reason, right.seed, right.sample_rate)


def assert_same_in_a_batch(left: Speech, right: Speech) -> None:
    """Equal codes; the codec's sums depend on the batch size, so samples may differ by one step of PCM16."""
    np.testing.assert_array_equal(left.codes, right.codes)
    assert np.abs(left.audio - right.audio).max() < 1.5 / 32767
    assert (left.finish_reason, left.seed) == (right.finish_reason, right.seed)


@pytest.fixture(scope="module")
def preset(small_checkpoints: CheckpointMaker) -> Oscine:
    return Oscine(small_checkpoints("1b7", "custom_voice"), device="cpu")


@pytest.fixture(scope="module")
def base_folder(small_checkpoints: CheckpointMaker) -> Path:
    return small_checkpoints("0b6", "base")


@pytest.fixture(scope="module")
def base(base_folder: Path) -> Oscine:
    return Oscine(base_folder, device="cpu")


@pytest.fixture(scope="module")
def in_context(base: Oscine) -> Voice:
    return base.clone(clip(1.3), "hello you")


@pytest.mark.parametrize("cap", [2, 3, 20])
def test_a_stream_is_the_speech_in_pieces(preset: Oscine, cap: int) -> None:
    fields: dict[str, Any] = {"voice": "ryan", "seed": 3, "max_new_tokens": cap}
    speech = preset.speak("hello you", **fields)
    pieces = list(preset.stream("hello you", **fields))
    assert len(speech.audio) == len(speech.codes) * FRAME
    assert all(len(piece) for piece in pieces)
    np.testing.assert_array_equal(np.concatenate(pieces), speech.audio)


def test_a_cloned_stream_is_the_speech_in_pieces(base: Oscine, in_context: Voice) -> None:
    fields: dict[str, Any] = {"voice": in_context, "seed": 3, "max_new_tokens": 20}
    speech, pieces = base.speak("hello", **fields), list(base.stream("hello", **fields))
    np.testing.assert_array_equal(np.concatenate(pieces), speech.audio)


def test_trimming_an_echo_changes_nothing_where_there_is_none(base: Oscine, in_context: Voice) -> None:
    for text in ("hello", "you"):
        fields: dict[str, Any] = {"voice": in_context, "seed": 3, "max_new_tokens": 60}
        speech, trimmed = base.speak(text, **fields), base.speak(text, **fields, trim_echo=True)
        np.testing.assert_array_equal(trimmed.audio, speech.audio)
        np.testing.assert_array_equal(trimmed.codes, speech.codes)


def test_a_presets_own_vector_speaks_the_codes_of_the_preset(small_checkpoints: CheckpointMaker) -> None:
    """A CustomVoice checkpoint takes any vector in a preset's place, with instructions too."""
    folder = small_checkpoints("1b7", "custom_voice")
    with Oscine(folder, device="cpu", slots=2) as tts, safe_open(folder / "model.safetensors", "pt") as weights:
        name = tts.voices[0]
        row = weights.get_tensor("talker.model.codec_embedding.weight")[tts.config.talker.speakers[name]]
        own = Voice.from_embedding(row.float().numpy())
        for options in ({}, {"instructions": "Whisper."}, {"text_mode": "streaming"}):
            given = {"seed": 1, "max_new_tokens": 12, "language": "english", **options}
            preset, vector = (tts.speak("Hello there.", voice=voice, **given) for voice in (name, own))
            np.testing.assert_array_equal(preset.codes, vector.codes)
        assert tts.mix({name: 1}) == tts.mix({own: 3}) == own
        given = {"seed": 1, "max_new_tokens": 8}
        mix, blend = {name: 1.0, tts.voices[1]: 2.0}, f"{name}+{tts.voices[1]}(2)"
        alone = tts.speak("Hello there.", voice=tts.mix(mix), **given)
        requests = [SpeechRequest("Hello there.", voice=voice, **given) for voice in (blend, name, VoiceMix.of(mix))]
        first, preset, last = tts.speak_batch(requests)
        np.testing.assert_array_equal(first.codes, alone.codes)
        np.testing.assert_array_equal(last.codes, alone.codes)
        assert not np.array_equal(preset.codes, alone.codes)
        for wrong, reason in (({name: 1, "nobody": 1}, "unknown voice"), ({Voice.from_embedding([1]): 1}, "1 numbers")):
            with pytest.raises(VoiceError, match=reason):
                tts.mix(wrong)
        other = tts.speak("Hello there.", voice=Voice.from_embedding(-own.speaker), seed=1, max_new_tokens=12)
        assert not np.array_equal(other.codes[:1], vector.codes[:1])


def test_a_batch_is_each_of_its_rows(preset: Oscine) -> None:
    requests = [
        SpeechRequest(text="hello you", voice="ryan", seed=1, max_new_tokens=16),
        SpeechRequest(text="you " * 20, voice="eric", greedy=True, seed=0, text_mode="streaming", max_new_tokens=9),
        SpeechRequest(text="a", seed=2, temperature=1.2, top_k=0, top_p=0.8, instructions="speak", max_new_tokens=2),
        SpeechRequest(text="you", voice="Vivian", language="Chinese", seed=3, max_new_tokens=17),
    ]
    for request, speech in zip(requests, preset.speak_batch(requests), strict=True):
        (alone,) = preset.speak_batch([request])
        assert_same_in_a_batch(speech, alone)
    assert preset.speak_batch([]) == []


def test_a_batch_of_cloned_voices_is_each_of_its_rows(base: Oscine, in_context: Voice) -> None:
    timbre = base.clone(clip(0.9, seed=1))
    requests = [
        SpeechRequest(text="hello", voice=voice, seed=seed, max_new_tokens=cap)
        for seed, (voice, cap) in enumerate([(in_context, 14), (timbre, 9), (in_context, 5)])
    ]
    for request, speech in zip(requests, base.speak_batch(requests), strict=True):
        assert_same_in_a_batch(speech, base.speak_batch([request])[0])


def test_events_of_a_batch_carry_the_index_of_their_request(preset: Oscine) -> None:
    requests = [SpeechRequest(text=text, seed=1, max_new_tokens=20) for text in ("hello", "you")]
    events: list[tuple[int, SpeechEvent]] = []
    speeches = preset.speak_batch(requests, on_event=lambda index, event: events.append((index, event)))
    for index, speech in enumerate(speeches):
        own = [event for one, event in events if one == index]
        np.testing.assert_array_equal(
            pcm16(speech.audio).tobytes(), b"".join(event.pcm for event in own if isinstance(event, Audio))
        )
        ends = [event.finish_reason if isinstance(event, Ended) else None for event in own]
        assert ends == [None] * (len(own) - 1) + [speech.finish_reason]


LONG = " ".join(f"This is sentence number {number}, and it is not short." for number in range(20))


def test_a_long_text_is_spoken_in_segments_and_none_is_lost(preset: Oscine) -> None:
    segments = segment_text(LONG)
    assert len(segments) > 2
    speech = preset.speak(LONG, seed=4, greedy=True, max_new_tokens=3 * len(segments))
    events: list[SpeechEvent] = []
    (again,) = preset.speak_batch(
        [SpeechRequest(text=LONG, seed=4, top_k=1)], on_event=lambda _, event: events.append(event)
    )
    spoken = [event.text for event in events if isinstance(event, SegmentEnded)]
    assert spoken == segments
    assert len(again.audio) == len(again.codes) * FRAME and len(speech.audio) == len(speech.codes) * FRAME


def test_a_dialogue_is_its_turns_spoken_alone(preset: Oscine) -> None:
    turns = [
        Turn("hello", voice="ryan"),
        Turn("you bird", voice=preset.voices[0], instructions="Whisper.", pause_s=0.3),
        Turn("hello you"),
    ]
    fields: dict[str, Any] = {"seed": 4, "language": "english"}
    alone = [
        preset.speak("hello", voice="ryan", **fields),
        preset.speak("you bird", voice=preset.voices[0], instructions="Whisper.", **fields),
        preset.speak("hello you", voice=preset.voices[-1], **fields),
    ]
    dialogue = preset.speak(turns=turns, voice=preset.voices[-1], **fields)
    np.testing.assert_array_equal(dialogue.codes, np.concatenate([one.codes for one in alone]))
    first, second, third = (one.audio for one in alone)
    expected = np.concatenate([first, np.zeros(round(0.3 * RATE), np.float32), second, third])
    assert len(dialogue.audio) == len(expected)
    for border in (len(first), len(first) + round(0.3 * RATE), len(expected) - len(third)):
        faded = slice(border - RATE // 200, border + RATE // 200)
        dialogue.audio[faded] = expected[faded] = 0
    np.testing.assert_array_equal(dialogue.audio, expected)


def test_what_is_wrong_with_a_turn_is_said_before_anything_is_spoken(preset: Oscine) -> None:
    for turn, message in (
        (Turn("you", voice="ryam"), "input[1].voice: unknown voice 'ryam'; did you mean 'ryan'?"),
        (Turn(""), "input[1].text: text is empty"),
        (Turn("you", pause_s=11), "input[1].pause_s must be a number of seconds from 0 to 10, got 11"),
        (Turn(5), "input[1].text must be a string, got int"),  # type: ignore[arg-type]
    ):
        with pytest.raises(RequestError, match=re.escape(message)):
            preset.stream(turns=[Turn("hello"), turn])
    with pytest.raises(RequestError, match="a request has a text or turns, not both"):
        preset.speak("hello", turns=[Turn("you")])


def test_text_options_change_what_is_spoken_and_pauses_are_exact(preset: Oscine) -> None:
    fields: dict[str, Any] = {"voice": "ryan", "seed": 3, "max_new_tokens": 6, "language": "english"}
    plain = preset.speak("five hello", **fields)
    assert_same(preset.speak("5 bird", normalize=True, pronunciations={"bird": "hello"}, **fields), plain)
    paused = preset.speak('<break time="300ms"/>five hello', **fields)
    np.testing.assert_array_equal(paused.audio[int(0.3 * RATE) :], plain.audio)
    assert not paused.audio[: int(0.3 * RATE)].any()
    np.testing.assert_array_equal(paused.codes, plain.codes)


@pytest.mark.parametrize(
    "changes", [{"speed": 2.0}, {"speed": 0.5}, {"sample_rate": 8000}, {"speed": 1.5, "sample_rate": 48000}]
)
def test_speed_and_rate_change_the_audio_and_not_the_codes(preset: Oscine, changes: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"voice": "ryan", "seed": 3, "max_new_tokens": 20}
    plain, speech = preset.speak("hello you", **fields), preset.speak("hello you", **fields, **changes)
    assert speech.sample_rate == changes.get("sample_rate", RATE)
    assert speech.duration_s == pytest.approx(plain.duration_s / changes.get("speed", 1.0), abs=1e-3)
    np.testing.assert_array_equal(speech.codes, plain.codes)
    np.testing.assert_array_equal(np.concatenate(list(preset.stream("hello you", **fields, **changes))), speech.audio)
    pcm = pcm16(plain.audio).tobytes()
    rate_hz, faster = changes.get("sample_rate"), changes.get("speed", 1.0)
    expected = encode_whole("pcm", pcm, rate_hz=RATE, out_rate_hz=rate_hz, speed=faster)  # as the server has it
    assert pcm16(speech.audio).tobytes() == expected


def test_segments_have_their_times_at_the_speed_of_the_speech(preset: Oscine) -> None:
    events: list[SpeechEvent] = []
    request = SpeechRequest(text=LONG, seed=4, top_k=1, speed=2.0, max_new_tokens=60)
    (speech,) = preset.speak_batch([request], on_event=lambda _, event: events.append(event))
    segments = [event for event in events if isinstance(event, SegmentEnded)]
    assert segments[-1].end_s == pytest.approx(speech.duration_s, abs=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speed": 5}, "speed must be a number from 0.25 to 4, got 5"),
        ({"speed": float("nan")}, "speed must be a number"),
        ({"speed": "1"}, "speed must be a number from 0.25 to 4, got '1'"),
        ({"speed": True}, "speed must be a number"),
        ({"sample_rate": 11}, "sample_rate must be one of 8000, "),
        ({"sample_rate": "24000"}, "sample_rate must be one of"),
    ],
)
def test_an_impossible_speed_or_rate_is_refused(preset: Oscine, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        preset.speak("hello", **options)
    assert caught.value.param == next(iter(options))


def test_after_close_every_call_says_so(small_checkpoints: CheckpointMaker) -> None:
    one = Oscine(small_checkpoints("1b7", "custom_voice"), device="cpu", slots=1)
    running, waiting = one.stream("hello", max_new_tokens=4000), one.stream("you")
    next(running)
    one.close()
    one.close()
    calls: list[Callable[[], object]] = [
        lambda: one.speak("hello"),
        lambda: one.stream("hello"),
        lambda: one.astream("hello"),
        lambda: asyncio.run(one.aspeak("hello")),
        lambda: one.speak_batch([SpeechRequest(text="hello")]),
        lambda: one.clone(clip(1.3)),
        lambda: next(waiting),
    ]
    for call in calls:
        with pytest.raises(EngineError, match="this Oscine is closed; create another one"):
            call()
    with pytest.raises(EngineError, match=r"stopped|closed"):
        list(running)
    assert repr(one).endswith(", closed)")
    gc.collect()  # a coroutine that was never awaited would warn, and warnings are errors


def test_a_clip_that_should_be_better_is_a_warning(base: Oscine) -> None:
    good = speech_like()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ClipWarning)
        base.clone(good, "ba " * 24)
    with pytest.warns(ClipWarning) as caught:
        base.clone(speech_like(1), "ba " * 200)
    short, transcript = (str(one.message) for one in caught)
    assert "of speech; 3 to 20 s clone better" in short and "the transcript does not seem to fit" in transcript
    assert all(one.filename == __file__ for one in caught)


@pytest.mark.parametrize(
    ("name", "meant"), [("ref_text", "transcript"), ("ref_audio", "clip"), ("transcrpt", "transcript")]
)
def test_an_unknown_option_of_a_clone_names_the_right_one(base: Oscine, name: str, meant: str) -> None:
    with pytest.raises(TypeError, match=f"unknown option '{name}'; did you mean '{meant}'"):
        base.clone(clip(1.3), **{name: "hello you"})


def test_a_voice_is_printed_in_one_short_line(base: Oscine, in_context: Voice) -> None:
    assert re.fullmatch(r"Voice\(1\.4 s of reference: 'hello you', [0-9a-f]{8}\)", repr(in_context))
    assert re.fullmatch(r"Voice\(timbre only, [0-9a-f]{8}\)", repr(base.clone(clip(1.3))))


def test_a_bad_text_option_is_refused_before_anything_is_spoken(preset: Oscine) -> None:
    for options in ({"paragraph_pause_s": -1.0}, {"pronunciations": {"": ""}}):
        with pytest.raises(RequestError):
            preset.stream("hello", **options)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="cannot be read"):
        preset.stream("hello <break time/>")


def test_async_forms_give_the_same_speech(preset: Oscine) -> None:
    async def both() -> tuple[Speech, np.ndarray]:
        pieces = [piece async for piece in preset.astream("hello you", seed=3, max_new_tokens=20)]
        return await preset.aspeak("hello you", seed=3, max_new_tokens=20), np.concatenate(pieces)

    speech, streamed = asyncio.run(both())
    assert_same(speech, preset.speak("hello you", seed=3, max_new_tokens=20))
    np.testing.assert_array_equal(streamed, speech.audio)


def test_a_stream_that_is_left_frees_its_slot(small_checkpoints: CheckpointMaker) -> None:
    with Oscine(small_checkpoints("1b7", "custom_voice"), device="cpu", slots=1) as one:
        for _ in range(3):
            next(one.stream("hello", seed=1, max_new_tokens=4000))
        assert one.speak("hello", seed=1, max_new_tokens=4).codes.shape == (3, 16)


def test_more_requests_than_slots_are_all_spoken(small_checkpoints: CheckpointMaker) -> None:
    with Oscine(small_checkpoints("1b7", "custom_voice"), device="cpu", slots=2) as two:
        requests = [SpeechRequest(text="hello", seed=seed, max_new_tokens=4) for seed in range(7)]
        assert [speech.seed for speech in two.speak_batch(requests)] == list(range(7))


@pytest.mark.parametrize("name", ["a.wav", "a.mp3", "a.flac", "a.opus", "a.aac", "a.pcm", "a"])
def test_a_speech_is_saved_in_the_format_of_its_suffix(preset: Oscine, tmp_path: Path, name: str) -> None:
    speech = preset.speak("hello", seed=3, max_new_tokens=6)
    speech.save(tmp_path / name)
    if name == "a.pcm":
        assert (tmp_path / name).read_bytes() == pcm16(speech.audio).tobytes()
    elif name == "a.aac":  # has no header that states a length
        assert abs(read_clip(tmp_path / name).duration_s - speech.duration_s) < 0.2
    else:
        assert_length((tmp_path / name).read_bytes(), len(speech.audio), RATE)
    with pytest.raises(RequestError, match=r"unknown audio format 'mp5'; did you mean 'mp3'\?"):
        speech.save("a.mp5")
    with pytest.raises(OscineError, match=r"cannot write .*there is no folder"):
        speech.save(tmp_path / "none" / "a.wav")


def test_a_speech_shows_itself(preset: Oscine) -> None:
    speech = preset.speak("hello", seed=3, max_new_tokens=6)
    assert repr(speech) == "Speech(0.40 s at 24000 Hz, length, seed=3)"
    assert speech._repr_html_().startswith("<audio controls")
    assert repr(preset).startswith("Oscine(custom_voice, voices: aiden, ")


def test_every_public_name_can_be_imported_and_is_listed() -> None:
    for name in oscine.__all__:
        assert getattr(oscine, name) is not None and name in dir(oscine)


def test_an_engine_in_its_own_process_serves_many_listeners() -> None:
    with start_engine("demo", EngineConfig(slots=2), device="cpu") as engine:
        pcm = speak_whole(engine, SpeechRequest(text="Hello.", voice="wren", seed=1, max_new_tokens=5))
    assert 0 < len(pcm) <= 4 * FRAME * 2


def test_a_random_seed_is_reported_and_repeats_the_speech(preset: Oscine) -> None:
    first = preset.speak("hello", max_new_tokens=6)
    assert_same(preset.speak("hello", max_new_tokens=6, seed=first.seed), first)
    assert preset.speak("hello", max_new_tokens=6).seed != first.seed


def test_a_voice_from_the_cache_is_the_fresh_one(base: Oscine, base_folder: Path, in_context: Voice) -> None:
    assert base.clone(clip(1.3), "hello you") is in_context
    fresh = Oscine(base_folder, device="cpu", slots=1).clone(clip(1.3), "hello you")
    assert fresh == in_context
    assert base.clone(clip(1.3)) != in_context  # without the words: another voice
    assert base.clone(clip(1.3), "hello me") != in_context
    assert base.clone(clip(1.3, seed=2), "hello you") != in_context


def test_the_second_use_of_a_voice_speaks_as_the_first(base_folder: Path) -> None:
    fresh = Oscine(base_folder, device="cpu", slots=1)
    voice = fresh.clone(clip(1.3), "hello you")
    first, second = (fresh.speak("you", voice=voice, seed=4, max_new_tokens=10) for _ in range(2))
    assert_same(first, second)
    # A stream that is left early does not spoil the cached reference.
    next(fresh.stream("another", voice=voice, seed=5, max_new_tokens=10))
    assert_same(fresh.speak("you", voice=voice, seed=4, max_new_tokens=10), first)


@pytest.mark.parametrize("transcript", ["hello you", None])
def test_a_saved_voice_speaks_as_before(base: Oscine, tmp_path: Path, transcript: str | None) -> None:
    voice = base.clone(clip(1.3), transcript)
    voice.save(tmp_path / "voice.safetensors")
    loaded = Voice.load(tmp_path / "voice.safetensors")
    assert loaded == voice
    before, after = (base.speak("you", voice=one, seed=4, max_new_tokens=10) for one in (voice, loaded))
    assert_same(before, after)


def test_the_reference_primes_the_codec_but_is_not_spoken(base: Oscine, in_context: Voice) -> None:
    speech = base.speak("you", voice=in_context, seed=4, max_new_tokens=10)
    assert len(speech.audio) == len(speech.codes) * FRAME
    assert in_context.reference_codes is not None
    assert len(in_context.reference_codes) == 17  # 1.3 s are 16.25 frames


def test_voices_and_languages_are_listed(preset: Oscine, base: Oscine) -> None:
    assert "ryan" in preset.voices
    assert base.voices == []
    assert preset.languages[0] == "auto"
    assert not any("dialect" in name for name in preset.languages)
    assert preset.sample_rate == RATE


@pytest.mark.parametrize("batch", [["hello"], "hello", [None]])
def test_a_batch_of_anything_but_requests_is_refused(preset: Oscine, batch: Any) -> None:
    for call in (preset.speak_batch, preset.check):
        with pytest.raises(RequestError, match=r"a request must be a SpeechRequest, got (str|NoneType); write"):
            call(batch)


@pytest.mark.parametrize("model", [None, 3, b"demo"])
def test_a_model_that_is_not_a_name_is_refused(model: Any) -> None:
    with pytest.raises(ConfigError, match=f"model must be a folder, a hub id or 'demo', got {type(model).__name__}"):
        Oscine(model)
