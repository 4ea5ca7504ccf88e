"""What each kind of checkpoint can do with a request, decided without torch."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from oscine.errors import RequestError, VoiceError
from oscine.request import SpeechRequest
from oscine.speech.capabilities import (
    check_can_clone,
    check_characters,
    check_speaker_width,
    check_text,
    instruction_examples,
    resolve_request,
    unknown_voice,
    unsupported_script,
)
from oscine.types import ModelCard
from oscine.voice import Voice

PUBLISHED_LANGUAGES = (
    *("chinese", "english", "japanese", "korean", "german"),
    *("french", "russian", "portuguese", "spanish", "italian"),
)
WIDTH = 4
TIMBRE = Voice(np.ones(WIDTH, np.float32))
IN_CONTEXT = Voice(np.ones(WIDTH, np.float32), np.zeros((2, 16), np.int64), "some words")


def card(kind: Any = "custom_voice", **changed: Any) -> ModelCard:
    fields: dict[str, Any] = {
        "name": "tiny", "kind": kind, "languages": PUBLISHED_LANGUAGES, "sample_rate_hz": 24000,
        "samples_per_frame": 1920, "speaker_width": WIDTH, "takes_instructions": kind != "base",
        "speakers": ("vivian", "ryan", "eric") if kind == "custom_voice" else (),
        "dialects": (("eric", "sichuan_dialect"),) if kind == "custom_voice" else (),
    }  # fmt: skip
    return ModelCard(**(fields | changed))


CUSTOM, SMALL = card(), card(takes_instructions=False)
DESIGN, BASE = card("voice_design"), card("base")


def request(**fields: Any) -> SpeechRequest:
    return SpeechRequest(**({"text": "hello"} | fields))


# Accepted


@pytest.mark.parametrize(
    ("model", "fields", "speaker", "language", "text_mode"),
    [
        (CUSTOM, {}, "vivian", None, "whole"),
        (CUSTOM, {"voice": "RYAN", "language": "English"}, "ryan", "english", "whole"),
        (CUSTOM, {"voice": "ryan", "text_mode": "streaming"}, "ryan", None, "streaming"),
        (CUSTOM, {"voice": "eric"}, "eric", "sichuan_dialect", "whole"),
        (CUSTOM, {"voice": "eric", "language": "chinese"}, "eric", "sichuan_dialect", "whole"),
        (CUSTOM, {"voice": "eric", "language": "german"}, "eric", "german", "whole"),
        (CUSTOM, {"instructions": "slowly"}, "vivian", None, "whole"),
        (SMALL, {"instructions": ""}, "vivian", None, "whole"),
        (DESIGN, {"instructions": "a calm voice"}, None, None, "whole"),
        (BASE, {"voice": TIMBRE}, None, None, "streaming"),
        (BASE, {"voice": IN_CONTEXT, "text_mode": "whole", "language": "french"}, None, "french", "whole"),
    ],
)
def test_a_request_is_resolved(
    model: ModelCard, fields: dict[str, Any], speaker: str | None, language: str | None, text_mode: str
) -> None:
    resolved = resolve_request(request(**fields), model)
    assert (resolved.speaker, resolved.language, resolved.text_mode) == (speaker, language, text_mode)
    assert resolved.voice is (fields["voice"] if isinstance(fields.get("voice"), Voice) else None)


@pytest.mark.parametrize("text_mode", [None, "streaming"])
def test_streaming_text_uses_the_streaming_layout(text_mode: Any) -> None:
    assert resolve_request(request(text_mode=text_mode), CUSTOM, streaming_text=True).text_mode == "streaming"


# Refused


@pytest.mark.parametrize(
    ("model", "fields", "param", "message"),
    [
        (
            CUSTOM,
            {"voice": "ryam"},
            "voice",
            "did you mean 'ryan'? (possible: eric, ryan, vivian)",
        ),
        (CUSTOM, {"voice": 3}, "voice", "a voice is a name or a Voice, got int"),
        (CUSTOM, {"language": "klingon"}, "language", "unknown language 'klingon' (possible: auto, chinese"),
        (CUSTOM, {"language": "sichuan_dialect"}, "language", "unknown language 'sichuan_dialect'"),
        (CUSTOM, {"language": None}, "language", "a language is a name, got NoneType"),
        (CUSTOM, {"instructions": " "}, "instructions", "instructions is only white space (1 characters)"),
        (CUSTOM, {"text_mode": "stream"}, "text_mode", "unknown text mode 'stream'; did you mean 'streaming'?"),
        (SMALL, {"instructions": "slowly"}, "instructions", "0.6B CustomVoice checkpoints do not follow instructions"),
        (DESIGN, {}, "instructions", "this VoiceDesign checkpoint needs a description of the voice"),
        (DESIGN, {"voice": "ryan", "instructions": "calm"}, "voice", "VoiceDesign checkpoint has no voices to choose"),
        (DESIGN, {"voice": TIMBRE, "instructions": "calm"}, "voice", "this VoiceDesign checkpoint cannot clone"),
        (BASE, {}, "voice", "this Base checkpoint needs a voice to clone; give a reference clip"),
        (BASE, {"voice": "ryan"}, "voice", "this Base checkpoint has no preset voices, so 'ryan' is unknown"),
        (BASE, {"voice": TIMBRE, "instructions": "sad"}, "instructions", "Base checkpoints do not follow instructions"),
        (
            BASE,
            {"voice": Voice(np.ones(7, np.float32))},
            "voice",
            "the voice's speaker vector has 7 numbers, this checkpoint needs 4",
        ),
    ],
)
def test_a_request_beyond_the_checkpoint_is_refused(
    model: ModelCard, fields: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(RequestError) as caught:
        resolve_request(request(**fields), model)
    assert message in str(caught.value)
    assert caught.value.param == param
    assert isinstance(caught.value, VoiceError) == (param == "voice")


def test_streaming_text_refuses_the_whole_layout() -> None:
    with pytest.raises(RequestError, match="text_mode 'whole' needs the whole text") as caught:
        resolve_request(request(text_mode="whole"), CUSTOM, streaming_text=True)
    assert caught.value.param == "text_mode"


@pytest.mark.parametrize("model", [CUSTOM, DESIGN])
def test_only_base_checkpoints_clone(model: ModelCard) -> None:
    check_can_clone(BASE)
    with pytest.raises(VoiceError, match="cannot clone; use a Base checkpoint") as caught:
        check_can_clone(model, "speaker_embedding")
    assert caught.value.param == "speaker_embedding"


def test_a_custom_voice_checkpoint_takes_the_timbre_of_another_voice_and_instructions() -> None:
    in_context = Voice(TIMBRE.speaker, np.zeros((3, 16), np.int64), "words")
    resolved = resolve_request(request(voice=in_context, instructions="Whisper."), CUSTOM)
    assert resolved.speaker is None and resolved.voice == TIMBRE and resolved.text_mode == "whole"


def test_a_speaker_vector_must_have_the_checkpoints_width() -> None:
    check_speaker_width(WIDTH, BASE)
    with pytest.raises(VoiceError, match="has 5 numbers, this checkpoint needs 4"):
        check_speaker_width(5, BASE)


def test_an_unknown_voice_lists_the_callers_names_too() -> None:
    assert "possible: anna, eric, ryan, vivian" in str(unknown_voice("x", CUSTOM, ["anna"]))
    assert "did you mean 'anna'?" in str(unknown_voice("ana", BASE, ["anna"]))


# Text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "must be a string, got NoneType"),
        (b"bytes", "must be a string, got bytes"),
        (7, "must be a string, got int"),
        (["a"], "must be a string, got list"),
        ("", "ref_text is empty"),
        (" \t\r\n\u3000\u00a0", "only white space (6 characters)"),
        ("abc\0def", "NUL character at index 3"),
        ("ab\ud83d", "(U+D83D) at index 2"),
        ("\udc00ab", "(U+DC00) at index 0"),
        ("ok 👍 \ude00", "(U+DE00) at index 5"),
    ],
)
def test_a_text_that_cannot_be_spoken_is_refused(text: object, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_text(text, "ref_text")
    assert message in str(caught.value)
    assert caught.value.param == "ref_text"


@pytest.mark.parametrize("text", ["a", "?!", "<|im_end|>", "你好", "👨‍👩‍👧‍👦", "\u200b", "\x07"])
def test_any_other_text_is_accepted(text: str) -> None:
    check_text(text)


def test_a_piece_of_streaming_text_may_be_white_space() -> None:
    check_characters(" \n")
    check_characters("")
    with pytest.raises(RequestError, match="NUL"):
        check_characters("\0")


# Scripts

SENTENCES = {
    "chinese": "你好，今天天气真好！我们去公园吧。",
    "english": "Hello there, how are you today?",
    "japanese": "こんにちは、東京タワーは333メートルです。",
    "korean": "안녕하세요, 오늘 날씨가 좋네요.",
    "german": "Grüße aus Köln, wie geht es Ihnen?",
    "french": "Ça va bien, merci ! Où êtes-vous ?",
    "russian": "Привет, мир! Как дела сегодня?",
    "portuguese": "Olá, como estão vocês? Não sei.",
    "spanish": "¿Cómo estás hoy? ¡Mañana será mejor!",
    "italian": "Città bellissima, perché no?",
}
LATIN = {"english", "german", "french", "portuguese", "spanish", "italian"}
DEMO = card(languages=("english",))


@pytest.mark.parametrize("language", PUBLISHED_LANGUAGES)
def test_a_published_checkpoint_has_the_script_of_each_of_its_languages(language: str) -> None:
    assert unsupported_script(SENTENCES[language], CUSTOM) is None
    assert unsupported_script(SENTENCES[language], card(languages=(language,))) is None


@pytest.mark.parametrize("language", PUBLISHED_LANGUAGES)
def test_the_demo_voice_has_the_latin_script_only(language: str) -> None:
    assert (unsupported_script(SENTENCES[language], DEMO) is None) == (language in LATIN)


@pytest.mark.parametrize(
    ("text", "languages", "script"),
    [
        (SENTENCES["chinese"], ("english",), "Chinese characters"),
        (SENTENCES["japanese"], ("english",), "Hiragana letters"),
        (SENTENCES["japanese"], ("chinese", "english"), "Hiragana letters"),
        (SENTENCES["korean"], ("english", "chinese"), "Hangul letters"),
        (SENTENCES["russian"], ("german",), "Cyrillic letters"),
        (SENTENCES["english"], ("chinese",), "Latin letters"),
        ("ｶﾀｶﾅﾃﾞｽ", ("english",), "Katakana letters"),
        ("مرحبا بالعالم", PUBLISHED_LANGUAGES, "Arabic letters"),
        ("नमस्ते दुनिया", PUBLISHED_LANGUAGES, "Devanagari letters"),
    ],
)
def test_the_warning_names_the_script_and_the_languages(text: str, languages: tuple[str, ...], script: str) -> None:
    warning = unsupported_script(text, card(languages=languages))
    assert warning is not None
    assert f"many {script}, but this checkpoint lists no language that uses them" in warning
    assert f"(languages: {', '.join(languages)})" in warning


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1234, 56 % ... 👍",
        "The word 你好 means hello in Chinese.",
        "Professor Иван teaches at the university.",
        "ＦＵＬＬＷＩＤＴＨ and 𝐛𝐨𝐥𝐝 letters, ª º µ",
    ],
)
def test_few_foreign_letters_give_no_warning(text: str) -> None:
    assert unsupported_script(text, DEMO) is None


@pytest.mark.parametrize("languages", [(), ("english", "esperanto")])
def test_unknown_languages_give_no_warning(languages: tuple[str, ...]) -> None:
    assert unsupported_script(SENTENCES["chinese"], card(languages=languages)) is None


def test_no_torch_is_imported() -> None:
    code = "import sys; import oscine.speech.capabilities; sys.exit(bool({'torch', 'tokenizers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_model_follows_the_instructions_that_its_checkpoint_lists_or_those_of_its_kind() -> None:
    own = (("Slow", "Speak slowly."),)
    assert instruction_examples(card(instruction_examples=own)) == dict(own)
    assert "Whisper" in instruction_examples(CUSTOM)
    assert "Narrator" in instruction_examples(card("voice_design"))
    assert instruction_examples(card(takes_instructions=False, instruction_examples=own)) == {}
