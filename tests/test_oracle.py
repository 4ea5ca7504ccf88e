"""The oracle harness: the official package loads our random checkpoints and generates varied speech."""

from typing import Any

import numpy as np
import pytest

from random_checkpoint import KINDS, SIZES
from tests.conftest import CheckpointMaker
from tests.oracle.client import Official, OracleError

pytestmark = pytest.mark.slow

RATE = 24000
TEXTS = ("One.", "Hello there, how are you today?", "What?", "Guten Morgen")


def clip(seconds: float = 1.0) -> np.ndarray:
    """A gliding, swelling tone with a little noise: the encoders give many different codes."""
    times = np.arange(int(RATE * seconds)) / RATE
    tone = 0.3 * np.sin(2 * np.pi * (200 + 50 * np.sin(3 * times)) * times) * np.abs(np.sin(5 * times))
    noise = 0.02 * np.random.default_rng(0).standard_normal(times.size)
    return (tone + noise).astype(np.float32)


def voice(kind: str) -> dict[str, Any]:
    """The fields that a request needs besides the text for this kind of model."""
    needs: dict[str, dict[str, Any]] = {
        "custom_voice": {"mode": "custom_voice", "speaker": "ryan"},
        "voice_design": {"mode": "voice_design", "instruct": "a calm, low voice"},
        "base": {"mode": "clone", "ref_audio": clip(), "ref_rate": RATE, "ref_text": "some words"},
    }
    return needs[kind]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_tiny_checkpoint_loads_completely_and_speaks(
    official: Official, checkpoints: CheckpointMaker, size: str, kind: str
) -> None:
    folder = checkpoints(size, kind)
    for part, report in official.call("loading_report", folder=folder).items():
        assert report == {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": []}, part
    answer = official.call("generate", folder=folder, text=TEXTS[1], max_new_tokens=12, **voice(kind))
    (item,) = answer["items"]
    frames = len(item["codes"])
    assert frames >= 2
    assert item["codes"].shape == (frames, 16)
    assert item["hidden"].shape == (frames, item["prompt"].shape[1])
    # With a reference clip the package may cut one sample early.
    assert len(item["waveform"]) - frames * 1920 in (0, 1)
    assert answer["rate"] == RATE
    assert 0.05 < item["waveform"].std() < 0.5
    assert np.mean(np.abs(item["waveform"]) >= 1) < 0.01


def test_some_texts_stop_and_some_reach_the_limit(official: Official, checkpoints: CheckpointMaker) -> None:
    folder = checkpoints("1b7", "custom_voice")
    spoken = [
        official.call("generate", folder=folder, text=text, max_new_tokens=40, **voice("custom_voice"))["items"][0]
        for text in TEXTS
    ]
    assert {item["finish"] for item in spoken} == {"stop", "length"}
    for item in spoken:
        if item["finish"] == "length":
            assert len(item["codes"]) == 39  # the last id never becomes a frame
        else:
            assert item["ids"][-1] == 2150
            assert len(item["codes"]) == len(item["ids"]) - 1


def test_a_small_vocabulary_is_read_like_a_large_one(official: Official, small_checkpoints: CheckpointMaker) -> None:
    folder = small_checkpoints("0b6", "custom_voice")
    (ids,) = official.call("tokenize", folder=folder, texts=["<|im_start|>assistant\nyes<|im_end|>\n"])["ids"]
    assert len(ids) == 3 + len("yes") + 2  # three role ids, a body and two end ids, as the prompt expects


def test_rows_of_a_batch_are_returned_without_padding(official: Official, checkpoints: CheckpointMaker) -> None:
    folder = checkpoints("0b6", "custom_voice")
    request = {"folder": folder, "max_new_tokens": 6, "non_streaming_mode": False, **voice("custom_voice")}
    batch = official.call("generate", text=list(TEXTS[:2]), **request)["items"]
    for text, item in zip(TEXTS, batch, strict=False):
        (alone,) = official.call("generate", text=text, **request)["items"]
        np.testing.assert_array_equal(item["codes"], alone["codes"])
        np.testing.assert_allclose(item["prompt"], alone["prompt"], atol=1e-6)
        trailing_rows = len(alone["trailing"])
        np.testing.assert_allclose(item["trailing"][:trailing_rows], alone["trailing"], atol=1e-6)
        assert (item["trailing"][trailing_rows:] == item["pad_row"]).all()


def test_a_clip_becomes_a_vector_and_many_codes(official: Official, checkpoints: CheckpointMaker) -> None:
    folder = checkpoints("1b7", "base")
    assert official.call("speaker_vector", folder=folder, audio=clip(), rate=RATE)["vector"].shape == (96,)
    codes = official.call("reference_codes", folder=folder, audio=clip(), rate=RATE)["codes"]
    assert codes.shape == (13, 16)  # a second is 12.5 frames; the last is padded
    assert all(len(set(column)) > 3 for column in codes.T)


def test_up_to_300_frames_decode_equally_in_chunks_and_whole(official: Official, checkpoints: CheckpointMaker) -> None:
    folder = checkpoints("0b6", "base")
    codes = np.random.default_rng(1).integers(0, 2048, (40, 16))
    chunked = official.call("decode", folder=folder, codes=codes)["waveform"]
    whole = official.call("decode", folder=folder, codes=codes, whole=True)["waveform"]
    assert chunked.shape == (40 * 1920,)
    np.testing.assert_allclose(chunked, whole, atol=1e-5)


def test_warp_applies_the_talkers_rules(official: Official) -> None:
    logits = np.random.default_rng(2).standard_normal((2, 3072)).astype(np.float32)
    logits[:, 2150] = 50.0
    settings = {"temperature": 0.9, "top_k": [50, 10], "repetition_penalty": 1.05}
    young, old = official.call("warp", logits=logits, history=[[1], [1, 2]], **settings)["probabilities"]
    assert young[2150] == 0  # no end-of-speech before two codes
    assert (young > 0).sum() == 50
    assert old[2150] > 0.99
    assert young[2048:].sum() == 0


def test_an_error_names_its_cause_and_the_process_survives(official: Official, checkpoints: CheckpointMaker) -> None:
    folder = checkpoints("1b7", "custom_voice")
    with pytest.raises(OracleError, match="Unsupported speakers"):
        official.call("generate", folder=folder, mode="custom_voice", text="hi", speaker="nobody")
    assert official.call("tokenize", folder=folder, texts=["\n\n"])["ids"] == [[271]]
