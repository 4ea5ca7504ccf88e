"""Oscine equals the official package: both run on the same checkpoints.

Greedy codes in fp32 must be equal. Rows and audio have tolerances, because sums run in another order.
"""

import wave
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from oscine import Oscine, Speech, SpeechRequest, Voice
from oscine.api import offline_config
from oscine.audio.clips import pcm16
from oscine.audio.pcm import CODEBOOKS
from oscine.config import RunawayConfig
from oscine.model.checkpoint import find_checkpoint
from oscine.model.device import Dtype
from oscine.model.speech_model import SpeechModel
from oscine.model.streaming import ContiguousKVCache
from oscine.model.weights import load_model
from oscine.prompt.builder import PromptBuilder
from oscine.prompt.tokenizer import Tokenizer
from oscine.request import TextMode
from oscine.runner.sampling import penalize
from oscine.types import Prompt
from random_checkpoint import SIZES
from tests.codec_states import decode_official
from tests.conftest import CheckpointMaker
from tests.oracle.client import Official
from tests.reference.codec_stream import CodecStream
from tests.reference.generate import trailing_rows

pytestmark = pytest.mark.slow

RATE = 24000
# Greedy codes of random weights repeat themselves, and the official package does not end them.
PLAIN = replace(offline_config(slots=8), runaway=RunawayConfig(enabled=False))
CODES, CODE_VOCAB = 2048, 3072
ROWS_ATOL = 1e-5  # rows have magnitude 1; measured 1e-6
AUDIO_ATOL = 1e-4  # samples are in -1..1; measured 2.1e-6
BF16_CAP = 7
CPU = torch.device("cpu")

ENGLISH = "Hello there, how are you today?"
CHINESE = "你好，今天天气真好！我们去公园吧。"
MIXED = "Oh — naïve café: 你好, 世界! Привет, こんにちは، مرحبا 🎉 3.14 iPhone's"
LONG = "It was a bright cold day in April, and the clocks were striking thirteen; " * 5  # one segment
TEXTS = (ENGLISH, CHINESE, MIXED, ".", "a", " hi ", "\nA new line.", "\n\n  Two of them.\n", LONG)


def sound(seconds: float, rate: int = RATE, seed: int = 0) -> np.ndarray:
    """A gliding, swelling tone with a little noise: the encoders give many different codes."""
    times = np.arange(int(rate * seconds)) / rate
    tone = 0.3 * np.sin(2 * np.pi * (200 + 50 * np.sin(3 * times + seed)) * times) * np.abs(np.sin(5 * times))
    noise = 0.02 * np.random.default_rng(seed).standard_normal(times.size)
    return (tone + noise).astype(np.float32)


@dataclass(frozen=True)
class Case:
    """One request to both implementations."""

    text: str = ENGLISH
    speaker: str | None = None
    language: str = "auto"
    instruct: str | None = None
    clip_s: float | None = None
    transcript: str | None = None  # with a clip: in-context; without: x-vector alone

    def ours(self, clone: Callable[..., Voice], text_mode: TextMode | None, cap: int) -> SpeechRequest:
        return SpeechRequest(
            text=self.text,
            voice=clone((sound(self.clip_s), RATE), self.transcript) if self.clip_s else self.speaker,
            language=self.language,
            instructions=self.instruct,
            text_mode=text_mode,
            greedy=True,
            max_new_tokens=cap,
            text_level="raw",
        )


def official_request(cases: Sequence[Case], text_mode: TextMode | None, cap: int) -> dict[str, Any]:
    """One call for all cases, which need the same kind of checkpoint."""
    fields: dict[str, Any] = {
        "text": [case.text for case in cases],
        "language": [case.language for case in cases],
        "non_streaming_mode": {None: None, "whole": True, "streaming": False}[text_mode],
        "max_new_tokens": cap,
    }
    if cases[0].clip_s:
        return fields | {
            "mode": "clone",
            "ref_audio": [sound(case.clip_s or 0) for case in cases],
            "ref_rate": RATE,
            "ref_text": [case.transcript for case in cases],
            "x_vector_only": [case.transcript is None for case in cases],
        }
    instructs = {"instruct": [case.instruct or "" for case in cases]}
    if cases[0].speaker:
        return fields | instructs | {"mode": "custom_voice", "speaker": [case.speaker for case in cases]}
    return fields | instructs | {"mode": "voice_design"}


class Ours:
    """One checkpoint on our side: the Python API, the prompt builder and the model."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, dtype: Dtype = "float32") -> None:
        self.folder = folder
        self.tts = Oscine(folder, device="cpu", dtype=dtype, config=PLAIN)
        self.model = load_model(folder, device=CPU, dtype=getattr(torch, dtype))
        self.builder = PromptBuilder(self.model.config, tokenizer)


OursMaker = Callable[[str, str], Ours]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tokenizer(vocabulary: Path) -> Tokenizer:
    return Tokenizer.from_folder(vocabulary)


@pytest.fixture(scope="module")
def ours(checkpoints: CheckpointMaker, tokenizer: Tokenizer) -> OursMaker:
    """ours(size, kind): each checkpoint is loaded once."""
    return cache(lambda size, kind: Ours(checkpoints(size, kind), tokenizer))


def check_same_prompt(model: SpeechModel, prompt: Prompt, item: dict[str, Any], what: str) -> None:
    with torch.inference_mode():
        rows, trailing = model.prompt_rows(prompt).numpy(), trailing_rows(model, prompt).numpy()
    np.testing.assert_allclose(rows, item["prompt"], rtol=0, atol=ROWS_ATOL, err_msg=what)
    # In a batch the official list is padded with the padding row; ours ends with one that repeats.
    filled = trailing[np.minimum(np.arange(len(item["trailing"])), len(trailing) - 1)]
    np.testing.assert_allclose(filled, item["trailing"], rtol=0, atol=ROWS_ATOL, err_msg=what)
    np.testing.assert_allclose(trailing[-1], item["pad_row"], rtol=0, atol=ROWS_ATOL, err_msg=what)
    assert len(trailing) - 1 <= len(item["trailing"]), what


def check_same_speech(speech: Speech, item: dict[str, Any], case: Case) -> None:
    np.testing.assert_array_equal(speech.codes, item["codes"], err_msg=str(case))
    assert speech.finish_reason == item["finish"], case
    # The official package cuts the reference off at int(reference / total * samples), sometimes one sample early.
    assert len(item["waveform"]) - len(speech.audio) in ((0, 1) if case.transcript else (0,)), case
    assert np.abs(speech.audio - item["waveform"][-len(speech.audio) :]).max() <= AUDIO_ATOL, case


def check_parity(
    official: Official, ours: Ours, cases: Sequence[Case], text_mode: TextMode | None = None, cap: int = 20
) -> list[Speech]:
    """Both sides run the cases as one batch."""
    items = official.call("generate", folder=ours.folder, **official_request(cases, text_mode, cap))["items"]
    requests = [case.ours(ours.tts.clone, text_mode, cap) for case in cases]
    speeches = ours.tts.speak_batch(requests)
    for case, request, speech, item in zip(cases, requests, speeches, items, strict=True):
        check_same_prompt(ours.model, ours.builder.build(request), item, str(case))
        check_same_speech(speech, item, case)
    return speeches


PRESET_CASES = (
    Case(ENGLISH, speaker="ryan"),
    Case(MIXED, speaker="Vivian", language="Chinese"),
    Case(CHINESE, speaker="serena", language="russian"),
    Case("a", speaker="eric"),  # without a language, the speaker's dialect
    Case(CHINESE, speaker="eric", language="chinese"),
    Case(ENGLISH, speaker="eric", language="english"),
    Case(ENGLISH, speaker="dylan", language="Auto"),
    Case(CHINESE, speaker="dylan", language="chinese"),
    Case("What?", speaker="Dylan", language="German"),
)
INSTRUCTED_CASES = (
    Case(ENGLISH, speaker="ryan", language="english", instruct="Slowly, and very sadly."),
    Case(CHINESE, speaker="eric", instruct="用特别愤怒的语气说"),
    Case("\nOne.", speaker="sohee", instruct="\nA line of its own."),
)
DESIGN_CASES = (
    Case(ENGLISH, instruct="A deep, calm voice of an old man."),
    Case(MIXED, instruct="一个年轻的女声", language="german"),
    Case(CHINESE, instruct="a child", language="Chinese"),
    Case(".", instruct="a child"),
)
# A second is 12.5 frames. The streaming layout pairs text with reference frames; either may be longer. All clips are
# whole frames: official batches pad shorter clips with zeros before the encoder, which changes the code of a partial
# frame.
CLONE_CASES = (
    Case(ENGLISH, clip_s=1.6),
    Case(CHINESE, clip_s=0.8, language="chinese"),
    Case("a", clip_s=1.6, language="french"),
    Case("Short.", clip_s=2.4, transcript="Few words."),
    Case(MIXED, clip_s=0.8, transcript="The text is longer than the sound, by far.", language="japanese"),
    Case(ENGLISH, clip_s=1.6, transcript="Some words of reference.", language="english"),
    Case(" hi ", clip_s=0.8, transcript="\nWords."),
)
CASES = {
    "1b7-custom_voice": PRESET_CASES + INSTRUCTED_CASES,
    "0b6-custom_voice": PRESET_CASES,
    "1b7-voice_design": DESIGN_CASES,
    "0b6-voice_design": DESIGN_CASES,
    "1b7-base": CLONE_CASES,
    "0b6-base": CLONE_CASES,
}


@pytest.mark.parametrize("text_mode", ["whole", "streaming"])
@pytest.mark.parametrize("model", CASES)
def test_a_batch_in_every_mode_gives_the_official_codes(
    official: Official, ours: OursMaker, model: str, text_mode: TextMode
) -> None:
    check_parity(official, ours(*model.split("-")), CASES[model], text_mode)


@pytest.mark.parametrize("model", CASES)
def test_a_single_request_with_defaults_gives_the_official_codes(
    official: Official, ours: OursMaker, model: str
) -> None:
    check_parity(official, ours(*model.split("-")), CASES[model][:1], cap=12)


@pytest.mark.parametrize("text_mode", ["whole", "streaming"])
def test_every_text_gives_the_official_codes(official: Official, ours: OursMaker, text_mode: TextMode) -> None:
    cases = [Case(text, speaker="aiden", language="english") for text in TEXTS]
    check_parity(official, ours("0b6", "custom_voice"), cases, text_mode, cap=12)
    cloned = [Case(text, clip_s=0.8, transcript=text) for text in TEXTS]
    check_parity(official, ours("1b7", "base"), cloned, text_mode, cap=12)


def test_clips_with_a_partial_frame_give_the_official_codes(official: Official, ours: OursMaker) -> None:
    check_parity(official, ours("1b7", "base"), [Case(MIXED, clip_s=1.23, transcript="Some words.")], cap=20)
    check_parity(official, ours("0b6", "base"), [Case("hi", clip_s=1.01, transcript="Some words.")], "whole", cap=20)


@pytest.mark.parametrize("cap", [2, 3])
@pytest.mark.parametrize("model", [model for model in CASES if model.startswith("1b7")])
def test_the_lowest_limits_give_the_official_frames(official: Official, ours: OursMaker, model: str, cap: int) -> None:
    speeches = check_parity(official, ours(*model.split("-")), CASES[model], cap=cap)
    assert {len(speech.codes) for speech in speeches} == {cap - 1}


def test_speech_stops_where_the_official_speech_does(official: Official, ours: OursMaker) -> None:
    cases = [Case(text, speaker="ryan") for text in ("One.", "Four.", "Five.", "Six.", "Non.", "What?")]
    speeches = check_parity(official, ours("1b7", "custom_voice"), cases, cap=40)
    assert [speech.finish_reason for speech in speeches].count("stop") >= 4
    assert len({len(speech.codes) for speech in speeches}) >= 4


DEMO_CASES = (
    Case("Who locked the gate?", speaker="wren"),
    Case("Please sit down.", speaker="finch", language="english", instruct="Speak slowly."),
)


@pytest.mark.parametrize("text_mode", ["whole", "streaming"])
def test_the_demo_voice_gives_the_official_codes(official: Official, text_mode: TextMode) -> None:
    folder = find_checkpoint("demo")
    check_parity(official, Ours(folder, Tokenizer.from_folder(folder)), DEMO_CASES, text_mode, cap=25)


def test_the_official_loader_finds_every_weight_of_the_demo_voice(official: Official) -> None:
    report = official.call("loading_report", folder=find_checkpoint("demo"))
    # The encoder is for cloning; this checkpoint has preset voices and no encoder.
    said = {key for keys in report["speech_tokenizer"].values() for key in keys if not key.startswith("encoder.")}
    assert not any(report["model"].values()) and not said, report


def stereo_wav(path: Path, rate: int) -> Path:
    channels = np.stack((sound(1.23, rate), 0.5 * sound(1.23, rate, seed=1)), axis=1)
    with wave.open(str(path), "wb") as file:
        file.setparams((2, 2, rate, len(channels), "NONE", "not compressed"))
        file.writeframes(pcm16(channels).tobytes())
    return path


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("seconds", "rate"),
    # 2.0 s at 24 kHz are whole frames of 1920 samples; others end within one. 14 s exceed the encoder's window of 250.
    [(0.41, 8000), (1.5, 16000), (2.0, 24000), (14.0, 24000), (1.0001, 44100), (2.777, 48000)],
)
def test_a_clip_gives_the_official_vector_and_codes(
    official: Official, ours: OursMaker, size: str, seconds: float, rate: int
) -> None:
    base, clip = ours(size, "base"), sound(seconds, rate)
    voice = base.tts.clone((clip, rate), "words")
    vector = official.call("speaker_vector", folder=base.folder, audio=clip, rate=rate)["vector"]
    codes = official.call("reference_codes", folder=base.folder, audio=clip, rate=rate)["codes"]
    np.testing.assert_allclose(voice.speaker, vector, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(voice.reference_codes, codes)


@pytest.mark.parametrize("rate", [24000, 44100])
def test_a_stereo_file_gives_the_official_vector_and_codes(
    official: Official, ours: OursMaker, tmp_path: Path, rate: int
) -> None:
    base, path = ours("0b6", "base"), stereo_wav(tmp_path / "clip.wav", rate)
    voice = base.tts.clone(path, "words")
    vector = official.call("speaker_vector", folder=base.folder, audio=path)["vector"]
    codes = official.call("reference_codes", folder=base.folder, audio=path)["codes"]
    np.testing.assert_allclose(voice.speaker, vector, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(voice.reference_codes, codes)


def random_codes(frames: int) -> np.ndarray:
    return np.random.default_rng(frames).integers(0, CODES, (frames, CODEBOOKS))


def test_official_windows_give_the_official_audio_at_any_length(official: Official, ours: OursMaker) -> None:
    preset, codes = ours("0b6", "custom_voice"), random_codes(650)
    waveform = official.call("decode", folder=preset.folder, codes=codes)["waveform"]
    codec, tensor = preset.model.codec, torch.from_numpy(codes)
    assert np.abs(decode_official(codec, tensor[None])[0].numpy() - waveform).max() <= AUDIO_ATOL
    stream = CodecStream(codec, "official")
    pieces = [stream.push(piece) for piece in tensor.split([1, 2, 4, 8, 284, 2, 298, 51])]  # one piece spans frame 301
    assert np.abs(torch.cat(pieces).numpy() - waveform).max() <= AUDIO_ATOL


def test_exact_windows_give_the_audio_of_one_official_forward(official: Official, ours: OursMaker) -> None:
    preset, codes = ours("0b6", "custom_voice"), random_codes(400)
    waveform = official.call("decode", folder=preset.folder, codes=codes, whole=True)["waveform"]
    samples = preset.model.codec.decode_whole(torch.from_numpy(codes)[None])[0].numpy()
    assert np.abs(samples - waveform).max() <= AUDIO_ATOL


@torch.inference_mode()
def agreement(model: SpeechModel, prompt: Prompt, codes: torch.Tensor, penalty: float) -> np.ndarray:
    """[frames, 16]: whether our greedy choice is the given code, after the given codes before it."""
    frames, trailing = len(codes), trailing_rows(model, prompt)
    text = trailing[torch.arange(frames - 1).clamp(max=len(trailing) - 1)]
    rows = torch.cat((model.prompt_rows(prompt), model.frame_rows(codes[:-1]) + text))[None]
    cache = ContiguousKVCache(model.config.talker.stack, 1, rows.shape[1], like=rows)
    hidden = model.talker.stack(rows, cache.prefill(rows.shape[1]))[0, prompt.rows - 1 :]
    seen = torch.zeros(frames, CODE_VOCAB, dtype=torch.bool)
    for frame in range(1, frames):
        seen[frame, codes[:frame, 0]] = True
    logits = penalize(model.talker.logits(hidden), seen, torch.tensor([[penalty]]))
    chosen = [logits[:, :CODES].argmax(-1)]  # no given frame is the last, so end-of-speech was not chosen
    cache = model.predictor.cache(frames)
    logits = model.predictor.first(hidden, model.talker.code_embedding(codes[:, 0]), cache)
    for book in range(1, CODEBOOKS):
        chosen.append(logits.argmax(-1))
        if book < CODEBOOKS - 1:
            logits = model.predictor.next(book, codes[:, book], cache)
    return (torch.stack(chosen, 1) == codes).numpy()


# torch warns once on CPUs without bf16 matrix instructions and uses another implementation.
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
@pytest.mark.parametrize("size", SIZES)
def test_in_bfloat16_each_choice_is_nearly_always_the_official_one(
    official: Official,
    checkpoints: CheckpointMaker,
    tokenizer: Tokenizer,
    record_property: Callable[[str, object], None],
    size: str,
) -> None:
    """Two bf16 implementations round differently, and after one near tie greedy speech differs for good: each choice
    is compared after the official codes before it. Random checkpoints have closer logits than trained ones."""
    ours = Ours(checkpoints(size, "custom_voice"), tokenizer, "bfloat16")
    cases = PRESET_CASES[3:]  # the shorter texts: a CPU without bf16 instructions is slow
    fields = official_request(cases, "whole", BF16_CAP)
    items = official.call("generate", folder=ours.folder, dtype="bfloat16", **fields)["items"]
    requests = [case.ours(ours.tts.clone, "whole", BF16_CAP) for case in cases]
    prompts = [ours.builder.build(request) for request in requests]
    for prompt, item in zip(prompts, items, strict=True):
        with torch.inference_mode():
            np.testing.assert_array_equal(ours.model.prompt_rows(prompt).float().numpy(), item["prompt"])
    penalty = ours.model.config.sampling.repetition_penalty
    same = np.concatenate(
        [
            agreement(ours.model, prompt, torch.from_numpy(item["codes"]), penalty)
            for prompt, item in zip(prompts, items, strict=True)
        ]
    )
    speeches = ours.tts.speak_batch(requests)
    first_frames = np.mean([speech.codes[0] == item["codes"][0] for speech, item in zip(speeches, items, strict=True)])
    figures = {
        "bf16_choices_equal": same.mean(),
        "bf16_code_0_choices_equal": same[:, 0].mean(),
        "bf16_first_frames_equal": first_frames,
    }
    for name, share in figures.items():
        record_property(name, round(float(share), 4))
        print(f"{size} {name}: {share:.1%}")
    assert same.size > 400
    assert same.mean() >= 0.95  # measured 98.3 % to 99.8 % in several batches
    assert first_frames >= 0.5  # measured 100 % (1b7) and 84 % (0b6): another code 0 changes fifteen more
