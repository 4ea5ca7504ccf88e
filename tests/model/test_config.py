"""Reading config.json, speech_tokenizer/config.json and generation_config.json; errors name the file and the key."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oscine import Oscine
from oscine.errors import CheckpointError
from oscine.model.checkpoint import DEMO, find_checkpoint
from oscine.model.config import read_config
from oscine.request import DrawParams, SamplingParams
from random_checkpoint import KINDS, SIZES, published_codec_config, published_config, small_vocabulary, write_vocabulary
from tests.conftest import ROOT, CheckpointMaker
from tests.variants import REMOVED, change_json, linked, replace_file

CODEC = "speech_tokenizer/config.json"


@pytest.fixture
def custom_voice(small_checkpoints: CheckpointMaker, tmp_path: Path) -> Path:
    return linked(small_checkpoints("1b7", "custom_voice"), tmp_path / "custom_voice")


@pytest.fixture
def base(small_checkpoints: CheckpointMaker, tmp_path: Path) -> Path:
    return linked(small_checkpoints("1b7", "base"), tmp_path / "base")


# Accepted


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_read(small_checkpoints: CheckpointMaker, size: str, kind: str) -> None:
    config = read_config(small_checkpoints(size, kind))
    assert (config.kind, config.size) == (kind, size)
    assert (config.speaker_encoder is not None) == (kind == "base")
    assert bool(config.talker.speakers) == (kind == "custom_voice")
    assert config.follows_instructions == (kind == "voice_design" or (kind, size) == ("custom_voice", "1b7"))
    assert config.codec.sample_rate_hz == 24000
    assert config.codec.samples_per_frame == 1920
    assert len(config.selectable_languages) == 10


def test_the_published_numbers(tmp_path: Path) -> None:
    replace_file(tmp_path / "config.json", json.dumps(published_config("1b7", "custom_voice")))
    (tmp_path / "speech_tokenizer").mkdir()
    replace_file(tmp_path / CODEC, json.dumps(published_codec_config()))
    config = read_config(tmp_path)
    talker = config.talker
    assert (talker.stack.width, talker.stack.layers, talker.stack.heads, talker.stack.kv_heads) == (2048, 28, 16, 8)
    assert (talker.code_vocab, talker.text_vocab, talker.max_positions) == (3072, 151936, 32768)
    assert (talker.pad_id, talker.bos_id, talker.eos_id) == (2148, 2149, 2150)
    assert (talker.think_id, talker.nothink_id, talker.think_bos_id, talker.think_eos_id) == (2154, 2155, 2156, 2157)
    assert talker.speakers["ryan"] == 3061
    assert talker.dialects == {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}
    assert (config.predictor.stack.width, config.predictor.vocab, config.predictor.talker_width) == (1024, 2048, 2048)
    assert (config.im_start_id, config.im_end_id) == (151644, 151645)
    assert (config.tts_pad_id, config.tts_bos_id, config.tts_eos_id) == (151671, 151672, 151673)
    assert config.codec.decoder.stack.window == 72
    assert config.codec.encoder.ratios == (4, 5, 6, 8)


def test_missing_speaker_encoder_constants_default_to_the_architectures(base: Path) -> None:
    change_json(base / "config.json", "speaker_encoder_config", {"enc_dim": 96, "sample_rate": 24000})
    encoder = read_config(base).speaker_encoder
    assert encoder is not None
    assert (encoder.width, encoder.channels, encoder.res2net_scale) == (96, (512, 512, 512, 512, 1536), 8)


# Model cards


def test_the_card_of_a_custom_voice_lists_speakers_languages_and_dialects(tmp_path: Path) -> None:
    published = published_config("1b7", "custom_voice")
    replace_file(tmp_path / "config.json", json.dumps(published))
    (tmp_path / "speech_tokenizer").mkdir()
    replace_file(tmp_path / CODEC, json.dumps(published_codec_config()))
    card = read_config(tmp_path).card("demo")
    assert (card.name, card.kind, card.takes_instructions, card.clones) == ("demo", "custom_voice", True, False)
    assert card.speakers == tuple(name.lower() for name in published["talker_config"]["spk_id"])
    assert len(card.languages) == 10 and {"english", "chinese"} <= set(card.languages) and "auto" not in card.languages
    assert dict(card.dialects) == {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}
    assert (card.sample_rate_hz, card.samples_per_frame, card.speaker_width) == (24000, 1920, 2048)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_card(small_checkpoints: CheckpointMaker, size: str, kind: str) -> None:
    config = read_config(small_checkpoints(size, kind))
    card = config.card("x")
    assert (card.kind, card.clones, bool(card.speakers)) == (kind, kind == "base", kind == "custom_voice")
    assert card.takes_instructions == config.follows_instructions
    assert card.languages and card.speaker_width == config.talker.stack.width
    assert {speaker for speaker, _ in card.dialects} <= set(card.speakers)


def test_a_card_has_the_phones_of_letters_if_the_codes_contain_phones(custom_voice: Path) -> None:
    assert read_config(custom_voice).card("x").phone_table is None
    path = custom_voice / "phones.json"
    path.write_text('{"codebooks": [1, 0], "added": [9, 5], "letters": {"a": [3, 9, 1]}}')
    table = read_config(custom_voice).card("x").phone_table
    assert table and table.codebooks == (1, 0) and table.letters["a"] == (3, 9, 1)
    path.write_text('{"codebooks": [1, 0], "added": [9, 5], "letters": {"a": [3]}}')
    with pytest.raises(CheckpointError, match=r"phones.json: letters.a must have 3 costs, got 1"):
        read_config(custom_voice)
    path.write_text('{"codebooks": [16], "added": [9, 5], "letters": {}}')
    with pytest.raises(CheckpointError, match=r"phones.json: codebooks must be from 0 to 15"):
        read_config(custom_voice)


def test_a_card_has_the_instructions_that_the_checkpoint_lists(custom_voice: Path) -> None:
    assert read_config(custom_voice).card("x").instruction_examples == ()
    (custom_voice / "instructions.json").write_text('{"Slow": "Speak slowly."}')
    assert read_config(custom_voice).card("x").instruction_examples == (("Slow", "Speak slowly."),)
    (custom_voice / "instructions.json").write_text('{"Slow": 1}')
    with pytest.raises(CheckpointError, match=r"instructions.json.*expected `str`, found {'Slow': 1}"):
        read_config(custom_voice)


def test_the_demo_lists_instructions_that_it_was_trained_on() -> None:
    training = (ROOT / "training" / "instructions.py").read_text("utf-8")
    examples = read_config(find_checkpoint(DEMO)).card("x").instruction_examples
    assert [name for name, _ in examples] == ["Slow", "Fast", "High", "Low"]
    assert [text for _, text in examples if f'"{text}"' not in training] == []


def test_a_card_needs_no_torch(small_checkpoints: CheckpointMaker) -> None:
    code = (
        "import sys, pathlib; from oscine.model.config import read_config; "
        "read_config(pathlib.Path(sys.argv[1])).card('x'); sys.exit('torch' in sys.modules)"
    )
    folder = str(small_checkpoints("1b7", "custom_voice"))
    assert subprocess.run([sys.executable, "-c", code, folder], check=False).returncode == 0


# Refused


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("model_type", "qwen3", "config.json.model_type is 'qwen3'; supported: 'qwen3_tts'; Oscine serves Qwen3-TTS"),
        ("model_type", REMOVED, "config.json.model_type is missing; supported: 'qwen3_tts'"),
        ("tokenizer_type", "qwen3_tts_tokenizer_25hz", "use a checkpoint whose name contains 12Hz"),
        ("tts_model_type", "singing", "tts_model_type is 'singing'; supported: 'custom_voice', 'voice_design', 'base'"),
        ("tts_model_type", 3, "config.json.tts_model_type is 3; supported: 'custom_voice'"),
        ("tts_model_size", REMOVED, "config.json.tts_model_size is missing; is this a complete"),
        ("talker_config", REMOVED, "config.json.talker_config is missing"),
        ("talker_config", [], "config.json.talker_config: expected `object`, found []"),
        ("talker_config.hidden_size", REMOVED, "config.json.talker_config.hidden_size is missing"),
        ("talker_config.hidden_size", "2048", "talker_config.hidden_size: expected `int`, found '2048'"),
        ("talker_config.hidden_size", 0, "talker_config.hidden_size: expected `int` >= 1, found 0"),
        ("talker_config.num_hidden_layers", True, "num_hidden_layers: expected `int`, found True"),
        ("talker_config.rms_norm_eps", None, "talker_config.rms_norm_eps: expected `float`, found None"),
        ("talker_config.rms_norm_eps", math.nan, "rms_norm_eps: expected `float` >= 1e-12, found nan"),
        ("talker_config.rms_norm_eps", -1e-6, "rms_norm_eps: expected `float` >= 1e-12, found -1e-06"),
        ("talker_config.rope_theta", 0, "talker_config.rope_theta: expected `float` >= 1.0, found 0"),
        ("talker_config.rope_theta", math.inf, "rope_theta: expected `float` <= 1000000000000.0, found inf"),
        ("talker_config.rope_theta", 10**400, "rope_theta: number out of range, found 1000"),
        ("talker_config.attention_bias", True, "talker_config.attention_bias is True; supported: False"),
        ("talker_config.hidden_act", "gelu", "talker_config.hidden_act is 'gelu'; supported: 'silu'"),
        ("talker_config.sliding_window", 512, "talker_config.sliding_window is 512; supported: None"),
        ("talker_config.num_code_groups", 32, "talker_config.num_code_groups is 32; supported: 16"),
        ("talker_config.codec_eos_token_id", -1, "codec_eos_token_id: expected `int` >= 0, found -1"),
        (
            "talker_config.codec_eos_token_id",
            3072,
            "eos_token_id: expected an id from 0 to 3071 (its table's rows)",
        ),
        (
            "talker_config.spk_id.ryan",
            4000,
            "talker_config.spk_id.ryan: expected an id from 0 to 3071",
        ),
        (
            "talker_config.spk_id.ryan",
            "3061",
            "(its table's rows), found '3061'",
        ),
        ("talker_config.spk_id", {}, "talker_config.spk_id is empty; a CustomVoice checkpoint lists its voices"),
        ("talker_config.codec_language_id", ["english"], "codec_language_id: expected `object`, found ['english']"),
        (
            "talker_config.codec_language_id.english",
            1 << 20,
            "language_id.english: expected an id from 0 to 3071",
        ),
        (
            "talker_config.spk_is_dialect.eric",
            "klingon",
            "spk_is_dialect.eric: expected false or a key of codec_language",
        ),
        (
            "talker_config.spk_is_dialect.ryan",
            True,
            "or a key of codec_language_id, found True",
        ),
        (
            "talker_config.spk_is_dialect.ryan",
            ["x"],
            "or a key of codec_language_id, found ['x']",
        ),
        ("talker_config.code_predictor_config", REMOVED, "talker_config.code_predictor_config is missing"),
        (
            "talker_config.code_predictor_config.vocab_size",
            0.5,
            "predictor_config.vocab_size: expected `int`, found 0.5",
        ),
        ("talker_config.code_predictor_config.attention_bias", True, "code_predictor_config.attention_bias is True"),
        ("im_start_token_id", REMOVED, "config.json.im_start_token_id is missing"),
        ("tts_pad_token_id", 10**6, "config.json.tts_pad_token_id: expected an id from 0 to "),
    ],
)
def test_a_bad_key_of_config_json_is_named(custom_voice: Path, key: str, value: Any, expected: str) -> None:
    change_json(custom_voice / "config.json", key, value)
    with pytest.raises(CheckpointError) as caught:
        read_config(custom_voice)
    assert expected in str(caught.value)
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("speaker_encoder_config", REMOVED, "config.json.speaker_encoder_config is missing"),
        ("speaker_encoder_config.enc_dim", REMOVED, "speaker_encoder_config.enc_dim is missing"),
        ("speaker_encoder_config.enc_channels", "many", "enc_channels: expected `array`, found 'many'"),
        (
            "speaker_encoder_config.enc_channels",
            [],
            "enc_channels: expected `array` of length >= 1, found []",
        ),
        ("speaker_encoder_config.enc_se_channels", [8], "enc_se_channels: expected `int`, found [8]"),
        ("speaker_encoder_config.sample_rate", 1, "sample_rate: expected `int` >= 8000, found 1"),
    ],
)
def test_a_bad_key_of_the_speaker_encoder_is_named(base: Path, key: str, value: Any, expected: str) -> None:
    change_json(base / "config.json", key, value)
    with pytest.raises(CheckpointError) as caught:
        read_config(base)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (
            "model_type",
            "qwen3_tts_tokenizer_25hz",
            "supported: 'qwen3_tts_tokenizer_12hz'; only the 12 Hz codec",
        ),
        ("encoder_valid_num_quantizers", 8, "encoder_valid_num_quantizers is 8; supported: 16"),
        ("decoder_config", REMOVED, "decoder_config is missing"),
        ("decoder_config.sliding_window", REMOVED, "decoder_config.sliding_window is missing"),
        ("decoder_config.upsample_rates", [8, 5, 4, 0], "upsample_rates[3]: expected `int` >= 1, found 0"),
        (
            "decoder_config.upsample_rates",
            [8, 5, 4, 2],
            "the product of the decoder's upsampling factors is 1280",
        ),
        ("encoder_config.use_conv_shortcut", True, "encoder_config.use_conv_shortcut is True; supported: False"),
        ("output_sample_rate", "24k", "output_sample_rate: expected `int`, found '24k'"),
        (
            "output_sample_rate",
            1,
            "is 1, but 12.5 frames per second of 1920 samples each are 24000 Hz",
        ),
        ("decoder_config.rms_norm_eps", math.nan, "decoder_config.rms_norm_eps: expected `float` >= 1e-12, found nan"),
        ("encoder_config.norm_eps", 2, "encoder_config.norm_eps: expected `float` <= 1.0, found 2"),
    ],
)
def test_a_bad_key_of_the_codec_is_named(custom_voice: Path, key: str, value: Any, expected: str) -> None:
    change_json(custom_voice / CODEC, key, value)
    with pytest.raises(CheckpointError) as caught:
        read_config(custom_voice)
    assert "speech_tokenizer/config.json" in str(caught.value)
    assert expected in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", CODEC, "generation_config.json"])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "cannot be read as JSON"),
        (b'{"model_type": "qwen3_tts",', "cannot be read as JSON"),
        (b"\xff\xfe", "cannot be read as JSON"),
        (b"[" * 100_000, "cannot be read as JSON"),
        (b"[1, 2]", "expected `object`, found [1, 2]"),
        (b'{"model_type": ' + b"9" * 5000 + b"}", "cannot be read as JSON"),
    ],
    ids=["empty", "cut", "binary", "deep", "list", "digits"],
)
def test_a_file_without_a_json_object_is_named(custom_voice: Path, name: str, content: bytes, expected: str) -> None:
    replace_file(custom_voice / name, content)
    with pytest.raises(CheckpointError) as caught:
        read_config(custom_voice)
    assert name in str(caught.value)
    assert expected in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", CODEC])
def test_a_missing_file_is_named(custom_voice: Path, name: str) -> None:
    (custom_voice / name).unlink()
    with pytest.raises(CheckpointError) as caught:
        read_config(custom_voice)
    assert f"config.json is missing in {(custom_voice / name).parent}" in str(caught.value)


# Sampling defaults


def test_sampling_defaults_come_from_the_file(custom_voice: Path) -> None:
    path = custom_voice / "generation_config.json"
    for key, value in {
        "do_sample": False, "temperature": 1, "top_k": 7, "top_p": 0.5, "subtalker_dosample": True,
        "subtalker_temperature": 0.25, "subtalker_top_k": 0, "subtalker_top_p": 0.75, "repetition_penalty": 1.5,
        "max_new_tokens": 99, "some_other_library": {"key": None},
    }.items():  # fmt: skip
        change_json(path, key, value)
    assert read_config(custom_voice).sampling == SamplingParams(
        first=DrawParams(greedy=True, temperature=1.0, top_k=7, top_p=0.5),
        rest=DrawParams(greedy=False, temperature=0.25, top_k=0, top_p=0.75),
        repetition_penalty=1.5,
        max_new_tokens=99,
    )


@pytest.mark.parametrize("content", [None, "{}"], ids=["missing", "empty object"])
def test_without_the_file_the_official_defaults_apply(custom_voice: Path, content: str | None) -> None:
    path = custom_voice / "generation_config.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    draw = DrawParams(greedy=False, temperature=0.9, top_k=50, top_p=1.0)
    assert read_config(custom_voice).sampling == SamplingParams(draw, draw, 1.05, 2048, 0)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("temperature", 0, "temperature must be above 0"),
        ("temperature", math.nan, "temperature must be 0"),
        ("temperature", 10**400, "generation_config.json.temperature: number out of range, found 1000"),
        ("temperature", "warm", "generation_config.json.temperature: expected `float`, found 'warm'"),
        ("top_k", None, "generation_config.json.top_k: expected `int`, found None"),
        ("top_k", -1, "top_k must be a whole number, 0 (off) or more, got -1"),
        ("top_p", 1.5, "top_p must be a number above 0 and at most 1"),
        ("do_sample", "false", "generation_config.json.do_sample: expected `bool`, found 'false'"),
        ("subtalker_dosample", 1, "generation_config.json.subtalker_dosample: expected `bool`, found 1"),
        ("subtalker_top_p", 0, "subtalker_top_p must be a number above 0 and at most 1"),
        ("repetition_penalty", 0, "repetition_penalty must be a number from 1e-06"),
        ("max_new_tokens", 1, "max_new_tokens must be a whole number of at least 2"),
    ],
)
def test_a_bad_key_of_generation_config_is_named(custom_voice: Path, key: str, value: Any, expected: str) -> None:
    change_json(custom_voice / "generation_config.json", key, value)
    with pytest.raises(CheckpointError) as caught:
        read_config(custom_voice)
    assert "generation_config.json" in str(caught.value)
    assert expected in str(caught.value)


# Tokenizer files


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt"])
def test_a_missing_tokenizer_file_is_named(custom_voice: Path, name: str) -> None:
    (custom_voice / name).unlink()
    with pytest.raises(CheckpointError, match=f"has no {name}"):
        Oscine(custom_voice, device="cpu")


def test_a_vocabulary_larger_than_the_embedding_is_refused(custom_voice: Path) -> None:
    vocab, merges = small_vocabulary()
    for name in ("vocab.json", "merges.txt"):
        (custom_voice / name).unlink()
    write_vocabulary(custom_voice, vocab | {"zz": 99_999}, merges)
    with pytest.raises(CheckpointError, match=r"vocab.json has ids up to 99999, config.json.talker_config.text_vocab"):
        Oscine(custom_voice, device="cpu")
