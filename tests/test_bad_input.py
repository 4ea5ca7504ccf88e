"""Any request to `Oscine` gives correct speech or one error that says what to do; later speech is unchanged.

audio/test_clips_refused.py has the clips.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from oscine import Oscine, OscineError, RequestError, SpeechRequest, TooLongError, Voice, VoiceError
from oscine.prompt.builder import PromptBuilder
from oscine.prompt.tokenizer import Tokenizer
from random_checkpoint import ADDED_TOKENS
from tests.conftest import CheckpointMaker
from tests.speakers import RATE, SHORT, WIDTH, Speakers, check_error, noise
from tests.variants import change_json, linked

pytestmark = pytest.mark.slow

SPECIAL_TEXT = "".join(ADDED_TOKENS)
RAW = {"text_level": "raw"}  # by default, such characters are taken out


@pytest.fixture(scope="module")
def speakers(small_checkpoints: CheckpointMaker) -> Speakers:
    return Speakers(small_checkpoints)


# Requests that are refused


@dataclass(frozen=True)
class Refused:
    fields: dict[str, Any]
    param: str
    messages: tuple[str, ...]
    model: str = "1b7-custom_voice"
    error: type[RequestError] = RequestError


CUSTOM_VOICES = "aiden, dylan, eric, ono_anna, ryan, serena, sohee, uncle_fu, vivian"

REFUSED: dict[str, Refused] = {
    "empty text": Refused({"text": ""}, "text", ("text is empty", "give at least one word")),
    "white space": Refused({"text": " \t\r\n\u3000"}, "text", ("only white space (5 characters)", "at least one word")),
    "bytes as text": Refused({"text": b"hello"}, "text", ("must be a string, got bytes",)),
    "no text": Refused({"text": None}, "text", ("must be a string, got NoneType",)),
    "marks alone": Refused({"text": "?!... 👍🏽 -- ;"}, "text", ("no words, only marks", "at least one word")),
    "NUL": Refused({"text": "ab\0c", **RAW}, "text", ("NUL character at index 2", "remove it")),
    "lone surrogate": Refused({"text": "ab\ud83d"}, "text", ("(U+D83D) at index 2", "send the whole character")),
    # Long texts are spoken in segments, and no segment ends without a word after it.
    "a hundred thousand marks": Refused(
        {"text": "?! " * 50_000, **RAW}, "text", ("positions, this checkpoint has 32768", "split the text"),
        error=TooLongError,
    ),
    "a hundred thousand marks, streaming": Refused(
        {"text": "?! " * 50_000, "text_mode": "streaming", **RAW}, "text", ("positions, this checkpoint has 32768",),
        error=TooLongError,
    ),
    "a bad character in a later segment": Refused(
        {"text": "hello you. " * 100 + "ab\0c", **RAW}, "text", ("NUL character", "remove it")
    ),
    "misspelled voice": Refused(
        {"voice": "ryam"}, "voice", ("unknown voice 'ryam'", "did you mean 'ryan'?", CUSTOM_VOICES), error=VoiceError
    ),
    "unknown voice": Refused(
        {"voice": "alloy"}, "voice", ("unknown voice 'alloy'", f"possible: {CUSTOM_VOICES}"), error=VoiceError
    ),
    "empty voice": Refused({"voice": ""}, "voice", ("unknown voice ''", CUSTOM_VOICES), error=VoiceError),
    "number as voice": Refused({"voice": 3}, "voice", ("a name or a Voice, got int",), error=VoiceError),
    "clip as voice": Refused(
        {"voice": noise(1)}, "voice", ("a name or a Voice, got ndarray", "Voice.from_embedding"), error=VoiceError
    ),
    "vector as voice on base": Refused(
        {"voice": np.ones(WIDTH)}, "voice", ("a name or a Voice, got ndarray", "Voice.from_embedding"), "1b7-base",
        VoiceError,
    ),
    "voice of another width on custom_voice": Refused(
        {"voice": Voice.from_embedding(np.ones(WIDTH + 1))}, "voice",
        (f"has {WIDTH + 1} numbers, this checkpoint needs {WIDTH}",), error=VoiceError,
    ),
    "voice on voice_design": Refused(
        {"voice": "ryan"}, "voice", ("VoiceDesign", "no voices to choose from", "describe one in the instructions"),
        "1b7-voice_design", VoiceError,
    ),
    "cloned voice on voice_design": Refused(
        {"voice": Voice.from_embedding(np.ones(WIDTH))}, "voice", ("VoiceDesign", "cannot clone", "Base checkpoint"),
        "1b7-voice_design", VoiceError,
    ),
    "preset on base": Refused(
        {"voice": "ryan"}, "voice", ("no preset voices", "'ryan'", "reference clip"), "1b7-base", VoiceError
    ),
    "no voice on base": Refused(
        {"voice": None}, "voice", ("needs a voice to clone", "reference clip"), "1b7-base", VoiceError
    ),
    "voice of another size": Refused(
        {"voice": Voice.from_embedding(np.ones(64))}, "voice",
        ("has 64 numbers, this checkpoint needs 96", "make the voice again"), "1b7-base", VoiceError,
    ),
    "codes of another codec": Refused(
        {"voice": Voice(np.ones(WIDTH, np.float32), np.full((4, 16), 2048), "hello")}, "voice",
        ("reference codes reach 2048, this checkpoint's end at 2047",), "1b7-base", VoiceError,
    ),
    "transcript with half a character": Refused(
        {"voice": Voice(np.ones(WIDTH, np.float32), np.zeros((4, 16), np.int64), "a\ud800")}, "ref_text",
        ("half a surrogate pair (U+D800) at index 1",), "1b7-base",
    ),
    "instructions on base": Refused(
        {"instructions": "whisper"}, "instructions",
        ("Base checkpoints do not follow instructions", "1.7B CustomVoice"), "1b7-base",
    ),
    "instructions on the small model": Refused(
        {"instructions": "whisper"}, "instructions", ("0.6B CustomVoice", "do not follow", "leave them out"),
        "0b6-custom_voice",
    ),
    "no instructions on voice_design": Refused(
        {"instructions": None}, "instructions", ("VoiceDesign", "needs a description of the voice"), "1b7-voice_design"
    ),
    "empty instructions on voice_design": Refused(
        {"instructions": ""}, "instructions", ("VoiceDesign", "needs a description of the voice"), "1b7-voice_design"
    ),
    "blank instructions": Refused(
        {"instructions": "  "}, "instructions", ("instructions is only white space (2 characters)",)
    ),
    "number as instructions": Refused({"instructions": 5}, "instructions", ("instructions must be a string", "got 5")),
    "NUL in instructions": Refused(
        {"instructions": "a\0"}, "instructions", ("instructions has a NUL character at index 1",)
    ),
    "unknown language": Refused(
        {"language": "englisch"}, "language",
        ("unknown language 'englisch'", "did you mean 'english'?", "auto, chinese, english, french"),
    ),
    "dialect by name": Refused(
        {"language": "sichuan_dialect"}, "language", ("unknown language 'sichuan_dialect'", "possible: auto, chinese")
    ),
    "no language": Refused({"language": None}, "language", ("language must be a string", "got None")),
    "unknown text mode": Refused(
        {"text_mode": "stream"}, "text_mode", ("text_mode must be one of whole, streaming", "got 'stream'")
    ),
    "temperature -1": Refused({"temperature": -1.0}, "temperature", ("0 (no randomness) or a number", "got -1.0")),
    "temperature NaN": Refused({"temperature": float("nan")}, "temperature", ("a number from 1e-06", "got nan")),
    "temperature infinite": Refused({"temperature": float("inf")}, "temperature", ("to 1e+06", "got inf")),
    "temperature below fp32": Refused({"temperature": 1e-50}, "temperature", ("1e-06 to", "got 1e-50")),
    "temperature in words": Refused({"temperature": "hot"}, "temperature", ("a number from 1e-06", "got 'hot'")),
    "subtalker temperature": Refused(
        {"subtalker_temperature": -0.5}, "subtalker_temperature", ("0 (no randomness) or a number", "got -0.5")
    ),
    "top_k -1": Refused({"top_k": -1}, "top_k", ("0 (off) or more", "got -1")),
    "top_k 2.5": Refused({"top_k": 2.5}, "top_k", ("a whole number", "got 2.5")),
    "top_k beyond an int64": Refused({"top_k": 10**30}, "top_k", ("a whole number",)),
    "top_p 0": Refused({"top_p": 0.0}, "top_p", ("above 0 and at most 1", "got 0.0")),
    "top_p 2": Refused({"top_p": 2}, "top_p", ("above 0 and at most 1", "got 2")),
    "top_p NaN": Refused({"top_p": float("nan")}, "top_p", ("above 0 and at most 1", "got nan")),
    "repetition_penalty 0": Refused({"repetition_penalty": 0}, "repetition_penalty", ("from 1e-06", "1 is off")),
    "repetition_penalty 1e300": Refused({"repetition_penalty": 1e300}, "repetition_penalty", ("got 1e+300",)),
    "max_new_tokens 1": Refused({"max_new_tokens": 1}, "max_new_tokens", ("at least 2", "one frame less", "got 1")),
    "max_new_tokens 0": Refused({"max_new_tokens": 0}, "max_new_tokens", ("at least 2", "got 0")),
    "max_new_tokens 2.5": Refused({"max_new_tokens": 2.5}, "max_new_tokens", ("a whole number", "got 2.5")),
    "seed -2": Refused({"seed": -2}, "seed", ("from 0 to 2**64 - 1", "or -1 (random)", "got -2")),
    "seed 2**64": Refused({"seed": 2**64}, "seed", ("from 0 to 2**64 - 1", f"got {2**64}")),
    "seed 1.5": Refused({"seed": 1.5}, "seed", ("a whole number", "got 1.5")),
    "seed in words": Refused({"seed": "lucky"}, "seed", ("a whole number", "got 'lucky'")),
    "trim_silence in words": Refused({"trim_silence": "no"}, "trim_silence", ("true or false", "got 'no'")),
    "greedy in words": Refused({"greedy": "no"}, "greedy", ("true or false", "got 'no'")),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_request_is_refused_and_later_speech_is_unchanged(speakers: Speakers, name: str) -> None:
    case = REFUSED[name]
    tts, good = speakers.load(case.model), speakers.fields(case.model)
    bad = {"text": "hello"} | good | case.fields
    for attempt in (tts.speak, tts.stream):  # a stream is checked before its first piece is read
        with pytest.raises(OscineError) as caught:
            attempt(**bad)
        check_error(caught.value, case.error, case.param, case.messages)
    speakers.check_unchanged(case.model)


def test_an_unknown_field_is_named(speakers: Speakers) -> None:
    with pytest.raises(TypeError, match="unknown option 'voise'; did you mean 'voice'"):
        speakers.load("1b7-custom_voice").speak("hello", voise="ryan")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_bad_request_stops_the_batch_before_it_starts(speakers: Speakers, place: int) -> None:
    name = "1b7-custom_voice"
    tts = speakers.load(name)
    requests = [SpeechRequest(text="hello", **SHORT) for _ in range(2)]
    requests.insert(place, SpeechRequest(text="hello", voice="nobody"))
    events: list[object] = []
    with pytest.raises(VoiceError, match="unknown voice 'nobody'"):
        tts.speak_batch(requests, on_event=lambda _, event: events.append(event))
    with pytest.raises(VoiceError, match="unknown voice 'nobody'"):
        tts.check(requests)
    assert events == []
    speakers.check_unchanged(name)


def test_no_requests_give_no_speech(speakers: Speakers) -> None:
    assert speakers.load("1b7-custom_voice").speak_batch([]) == []


# Odd requests that are spoken

SPOKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "only punctuation": ("1b7-custom_voice", {"text": "?!... -- ;", **RAW}),
    "emoji": ("1b7-custom_voice", {"text": "👍🏽 👨‍👩‍👧‍👦 🇩🇪", **RAW}),
    "right to left": ("1b7-custom_voice", {"text": "שלום עולם, مرحبا"}),
    "only zero-width": ("1b7-custom_voice", {"text": "\u200b\u200d\ufeff", **RAW}),
    "one letter": ("0b6-custom_voice", {"text": "a", "text_mode": "streaming"}),
    "newlines first": ("1b7-base", {"text": "\n\n\n\n\nhello"}),
    "control characters": ("1b7-base", {"text": "a\x07\x1b[31mred\x7f"}),
    "voice in capitals": ("1b7-custom_voice", {"voice": "RYAN", "language": "English"}),
    "special tokens as text": ("1b7-custom_voice", {"text": SPECIAL_TEXT}),
    "special tokens, streaming": ("0b6-custom_voice", {"text": SPECIAL_TEXT, "text_mode": "streaming"}),
    "special tokens as instructions": ("1b7-custom_voice", {"instructions": SPECIAL_TEXT}),
    "special tokens as a design": ("1b7-voice_design", {"instructions": SPECIAL_TEXT}),
    "the lowest temperature": ("1b7-custom_voice", {"temperature": 1e-6, "subtalker_temperature": 1e-6}),
    "the highest temperature": ("1b7-custom_voice", {"temperature": 1e6, "repetition_penalty": 1e6}),
    "top_k beyond the vocabulary": ("1b7-custom_voice", {"top_k": 2**31 - 1}),
    "a tiny top_p": ("1b7-custom_voice", {"top_p": 1e-300}),
    "the largest seed": ("1b7-custom_voice", {"seed": 2**64 - 1}),
    "numbers of numpy": ("1b7-custom_voice", {"seed": np.int64(3), "top_k": np.int32(5), "temperature": np.float32(1)}),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOKEN)
def test_an_odd_request_is_spoken(speakers: Speakers, name: str) -> None:
    model, fields = SPOKEN[name]
    speech = speakers.load(model).speak(**({"text": "hello"} | speakers.fields(model) | fields))
    assert speech.codes.shape == (2, 16)
    assert speech.audio.shape == (2 * 1920,)
    assert np.isfinite(speech.audio).all()
    assert 0 < np.abs(speech.audio).max() <= 1
    assert speech.finish_reason == "length"


def test_the_lowest_temperature_is_greedy(speakers: Speakers) -> None:
    tts = speakers.load("1b7-custom_voice")
    cold = tts.speak("hello", **SHORT, temperature=1e-6, subtalker_temperature=1e-6)
    np.testing.assert_array_equal(cold.codes, tts.speak("hello", **SHORT, greedy=True).codes)


@pytest.mark.parametrize("model", ["1b7-custom_voice", "1b7-voice_design", "1b7-base"])
@pytest.mark.parametrize("mode", ["whole", "streaming"])
def test_special_tokens_in_a_text_add_no_special_ids(speakers: Speakers, model: str, mode: Any) -> None:
    config = speakers.load(model).config
    builder = PromptBuilder(config, Tokenizer.from_folder(speakers.folder(model)))
    first_special = Tokenizer.from_folder(speakers.folder(model)).vocab_size

    def special_ids(words: str) -> dict[int, int]:
        """Counts of special ids in a prompt with these words in every field that takes text."""
        fields = speakers.fields(model) | {"text": words, "text_mode": mode}
        if config.follows_instructions:
            fields["instructions"] = words
        if config.kind == "base":
            voice = fields["voice"]
            fields["voice"] = Voice(voice.speaker, voice.reference_codes, words)
        prompt = builder.build(SpeechRequest(**fields))
        ids = [int(i) for i in [*prompt.text_ids, *prompt.trailing_ids] if i >= first_special]
        return {i: ids.count(i) for i in set(ids)}

    plain = special_ids("hello " * len(SPECIAL_TEXT))
    assert special_ids(SPECIAL_TEXT) == plain
    ours = {config.im_start_id, config.im_end_id, config.tts_pad_id, config.tts_bos_id, config.tts_eos_id}
    assert set(plain) <= ours


def test_special_tokens_in_a_transcript_are_plain_text(speakers: Speakers) -> None:
    tts = speakers.load("1b7-base")
    voice = tts.clone((noise(0.5), RATE), SPECIAL_TEXT)
    assert tts.speak("hello", voice=voice, **SHORT).codes.shape == (2, 16)


# Starting


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        ({"device": "gpu"}, ("unknown device 'gpu'", "auto, cpu, cuda")),
        ({"device": None}, ("unknown device None", "auto, cpu, cuda")),
        ({"device": "meta"}, ("device 'meta' is not supported", "auto, cpu, cuda")),
        ({"device": "cuda:99"}, ("device 'cuda:99' is not on this machine", "CUDA devices)")),
        ({"device": "cpu", "dtype": "float16"}, ("unknown dtype 'float16'", "auto, float32, bfloat16")),
        ({"device": "cpu", "dtype": torch.bfloat16}, ("unknown dtype torch.bfloat16", "auto, float32, bfloat16")),
    ],
)
def test_bad_options_are_refused_before_anything_is_loaded(options: dict[str, Any], messages: tuple[str, ...]) -> None:
    with pytest.raises(OscineError) as caught:
        Oscine("/nowhere/at/all", **options)
    check_error(caught.value, OscineError, None, messages)


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_cuda_without_a_gpu_is_refused() -> None:
    with pytest.raises(OscineError, match=r"'cuda' is not on this machine \(0 CUDA devices\); use cpu"):
        Oscine("/nowhere/at/all", device="cuda")


# Positions

POSITIONS = 64


@pytest.fixture(scope="module")
def small_context(speakers: Speakers, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Oscine]:
    """Checkpoints with 64 positions: one block of the KV cache."""

    @cache
    def load(model: str) -> Oscine:
        folder = linked(speakers.folder(model), tmp_path_factory.mktemp("small_context") / model)
        change_json(folder / "config.json", "talker_config.max_position_embeddings", POSITIONS)
        return Oscine(folder, device="cpu", slots=1)

    return load


@pytest.mark.parametrize("mode", ["whole", "streaming"])
def test_a_text_that_exceeds_the_positions_is_refused(small_context: Callable[[str], Oscine], mode: str) -> None:
    tts = small_context("1b7-custom_voice")
    with pytest.raises(OscineError) as caught:
        tts.speak("z" * 100, text_mode=mode, **SHORT)
    check_error(caught.value, TooLongError, "text", (f"positions, this checkpoint has {POSITIONS}", "split the text"))
    assert "reference" not in str(caught.value)
    assert tts.speak("hello", text_mode=mode, **SHORT).codes.shape == (2, 16)


def test_a_reference_that_exceeds_the_positions_is_refused(small_context: Callable[[str], Oscine]) -> None:
    tts = small_context("1b7-base")
    voice = tts.clone((noise(6), RATE), "hello you")
    with pytest.raises(OscineError) as caught:
        tts.speak("hello", voice=voice, **SHORT)
    check_error(caught.value, TooLongError, "text", ("split the text or shorten the reference clip",))
    assert tts.speak("hello", voice=Voice(voice.speaker), **SHORT).codes.shape == (2, 16)


def test_speech_ends_at_the_last_position(small_context: Callable[[str], Oscine]) -> None:
    tts = small_context("1b7-custom_voice")
    longest = max(n for n in range(1, POSITIONS) if fits(tts, "z" * n))
    speech = tts.speak("z" * longest, seed=7, max_new_tokens=100)
    assert (len(speech.codes), speech.finish_reason) == (1, "length")


def fits(tts: Oscine, text: str) -> bool:
    try:
        tts.check([SpeechRequest(text=text)])
    except TooLongError:
        return False
    return True
