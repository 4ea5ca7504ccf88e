"""A voice is an immutable value: equal by content, unchanged by saving and loading, and always complete."""

import json
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from oscine import OscineError, Voice, VoiceError
from oscine.voice import blended
from tests.conftest import CheckpointMaker
from tests.speakers import RATE, SHORT, WIDTH, Speakers, check_error, noise


def vector(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=WIDTH).astype(np.float32)


def codes(seed: int = 0, frames: int = 6) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2048, (frames, 16))


def in_context() -> Voice:
    return Voice(vector(), codes(), "hello you")


# Equality


def test_equal_content_is_an_equal_voice() -> None:
    assert in_context() == in_context()
    assert hash(in_context()) == hash(in_context())
    assert in_context().content_hash == in_context().content_hash
    assert Voice(vector()) == Voice.from_embedding(vector().tolist())


def test_any_difference_makes_another_voice() -> None:
    voices = [
        in_context(),
        Voice(vector()),
        Voice(vector(1)),
        Voice(vector(1), codes(), "hello you"),
        Voice(vector(), codes(1), "hello you"),
        Voice(vector(), codes(frames=7), "hello you"),
        Voice(vector(), codes(), "hello you."),
    ]
    assert len({voice.content_hash for voice in voices}) == len(voices)
    assert in_context() != "hello you"


def test_a_voice_cannot_be_changed_from_outside() -> None:
    speaker, reference = vector(), codes()
    voice = Voice(speaker, reference, "hello you")
    known = voice.content_hash
    speaker[0] = 9.0
    reference[0, 0] = 9
    assert voice == in_context()
    assert Voice(voice.speaker, voice.reference_codes, voice.transcript).content_hash == known
    for array in (voice.speaker, voice.reference_codes):
        assert array is not None
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_arrays_of_any_memory_order_are_accepted() -> None:
    backwards = Voice(vector()[::-1], np.asfortranarray(codes())[::-1], "hello you")
    assert backwards == Voice(vector()[::-1].copy(), codes()[::-1].copy(), "hello you")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, 2.0],), "must be one row of float32, got list"),
        ((vector().astype(np.float64),), "must be one row of float32, got float64 [96]"),
        ((vector(), codes()), "go together"),
        ((vector(), None, "hello"), "go together"),
        ((vector(), codes(), 5), "a transcript must be a string, got int"),
        ((vector(), codes().tolist(), "hello"), "must be int64 [frames, 16], got list"),
        ((vector(), codes().astype(np.int32), "hello"), "must be int64 [frames, 16], got int32 [6, 16]"),
        ((vector(), codes()[:, :15], "hello"), "must be int64 [frames, 16], got int64 [6, 15]"),
        ((vector(), codes()[:0], "hello"), "must be int64 [frames, 16], got int64 [0, 16]"),
        ((vector(), codes()[0], "hello"), "must be int64 [frames, 16], got int64 [16]"),
        ((vector(), codes() - 3000, "hello"), "must not be negative"),
    ],
)
def test_incomplete_or_malformed_voices_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(OscineError) as caught:
        Voice(*arguments)
    check_error(caught.value, VoiceError, "voice", (message,))


@pytest.mark.parametrize(
    ("vector", "message"),
    [
        ([float("nan")] * WIDTH, "NaN or infinite"),
        ([float("inf")] * WIDTH, "NaN or infinite"),
        (np.full(WIDTH, 1e300), "NaN or infinite"),
        ([3.4e38] * WIDTH, "numbers up to 3.4e+38, the limit is 10000; compute it again"),
        (np.ones((2, WIDTH)), "must be one row of float32, got float32 [2, 96]"),
        (np.float32(3), "must be one row of float32, got float32 []"),
        ([], "must be one row of float32, got float32 [0]"),
        ("0.1, 0.2", "must be a list of numbers, got str"),
        (["a", "b"], "must be a list of numbers, got list"),
        ([[1.0, 2.0], [3.0]], "must be a list of numbers, got list"),
        (None, "must be a list of numbers, got NoneType"),
        (np.ones(WIDTH, complex), "must be a list of numbers, got complex128 [96]"),
    ],
)
def test_a_bad_embedding_is_refused(vector: Any, message: str) -> None:
    with pytest.raises(OscineError) as caught:
        Voice.from_embedding(vector)
    check_error(caught.value, VoiceError, "voice", (message,))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def tamper(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def write_foreign(path: Path) -> None:
    save_file({"speaker": np.ones(WIDTH, np.float32)}, path)


def rewrite(path: Path, about: dict[str, str], drop: str = "") -> None:
    tensors = load_file(path)
    tensors.pop(drop, None)
    save_file(tensors, path, metadata={"format": "oscine.voice.1", "content_hash": "0"} | about)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "there is no voice file"),
        (lambda path: path.write_bytes(b""), "not a readable voice file"),
        (lambda path: path.write_bytes(b"RIFF" * 100), "not a readable voice file"),
        (truncate, "not a readable voice file"),
        (write_foreign, "not a voice file of Oscine"),
        (tamper, "does not match its content hash"),
        (lambda path: rewrite(path, {"transcript": '"hello"'}), "does not match its content hash"),
        (lambda path: rewrite(path, {"transcript": "hello"}), "damaged voice file: Expecting value"),
        (lambda path: rewrite(path, {"transcript": "5"}), "damaged voice file: a transcript must be a string"),
        (lambda path: rewrite(path, {}), "damaged voice file: reference codes and their transcript go together"),
        (lambda path: rewrite(path, {"transcript": '"a"'}, drop="speaker"), "damaged voice file: a speaker vector"),
        (lambda path: rewrite(path, {"transcript": '"a"', "notes": "["}), "damaged voice file: Expecting value"),
        (lambda path: rewrite(path, {"transcript": '"a"', "notes": '{"a": 1}'}), "damaged voice file: its notes"),
    ],
    ids=[
        *("missing", "empty", "garbage", "truncated", "foreign", "tampered", "hash", "json", "type", "pair", "speaker"),
        *("notes", "note"),
    ],
)
def test_a_bad_voice_file_is_refused(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    path = tmp_path / "voice.safetensors"
    in_context().save(path)
    damage(path)
    with pytest.raises(OscineError) as caught:
        Voice.load(path)
    check_error(caught.value, VoiceError, "voice", (str(path), message))


def test_a_model_file_is_not_read_as_a_voice(small_checkpoints: CheckpointMaker) -> None:
    with pytest.raises(VoiceError, match="not a voice file of Oscine"):
        Voice.load(small_checkpoints("1b7", "base") / "model.safetensors")


# Files


@pytest.mark.parametrize("transcript", ["hello you", '你好 👋\n"quoted" \\ back', "\u200b<|im_end|>"])
def test_a_saved_voice_is_the_same_voice(tmp_path: Path, transcript: str) -> None:
    for name, voice in {"both": Voice(vector(), codes(), transcript), "timbre": Voice(vector())}.items():
        voice.save(tmp_path / name)
        again = Voice.load(tmp_path / name)
        assert again == voice
        assert again.transcript == voice.transcript
        np.testing.assert_array_equal(again.speaker, voice.speaker)
        Voice.load(str(tmp_path / name))  # a path may be a string


def test_notes_are_saved_with_a_voice_and_are_not_part_of_it(tmp_path: Path) -> None:
    notes = {"consent": "yes, 你好", "": "\ud800\0"}
    in_context().save(tmp_path / "noted", notes)
    in_context().save(tmp_path / "plain")
    assert Voice.load_with_notes(tmp_path / "noted") == (in_context(), notes)
    assert Voice.load_with_notes(tmp_path / "plain") == (in_context(), {})
    assert Voice.load(tmp_path / "noted") == Voice.load(tmp_path / "plain")


def test_a_saved_voice_speaks_as_the_cloned_one_does(small_checkpoints: CheckpointMaker, tmp_path: Path) -> None:
    speakers = Speakers(small_checkpoints)
    tts = speakers.load("1b7-base")
    for transcript in ("hello you", None):
        voice = tts.clone((noise(0.5), RATE), transcript)
        voice.save(tmp_path / "voice.safetensors")
        speeches = [tts.speak("hello", voice=v, **SHORT) for v in (voice, Voice.load(tmp_path / "voice.safetensors"))]
        np.testing.assert_array_equal(speeches[0].codes, speeches[1].codes)
        np.testing.assert_array_equal(speeches[0].audio, speeches[1].audio)


def test_a_voice_replaces_the_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "voice.safetensors"
    Voice(vector()).save(path)
    in_context().save(path)
    assert Voice.load(path) == in_context()
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    in_context().save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and Voice.load(tmp_path / "real") == in_context()
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(VoiceError, match="circle"):
        in_context().save(tmp_path / "circle")


def test_a_pipe_is_written_and_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()), daemon=True)
    reader.start()
    in_context().save(tmp_path / "pipe")
    reader.join(600)
    (tmp_path / "voice").write_bytes(read[0])
    assert Voice.load(tmp_path / "voice") == in_context() and (tmp_path / "pipe").is_fifo()


def test_a_new_voice_file_has_default_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    in_context().save(tmp_path / "voice")
    assert len({stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}) == 1


def test_the_file_states_its_format_and_content_hash(tmp_path: Path) -> None:
    in_context().save(tmp_path / "voice.safetensors")
    content = (tmp_path / "voice.safetensors").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert header["__metadata__"]["format"] == "oscine.voice.1"
    assert header["__metadata__"]["content_hash"] == in_context().content_hash
    assert json.loads(header["__metadata__"]["transcript"]) == "hello you"


@pytest.mark.parametrize("name", ["", ".", "missing/voice.safetensors", "file/voice.safetensors", "x" * 300])
def test_a_path_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("not a folder")
    with pytest.raises(OscineError) as caught:
        in_context().save(name)
    check_error(caught.value, VoiceError, "voice", (f"cannot be written to {name!r}",))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# The content of a file, which may come from anywhere


def test_a_voice_survives_its_bytes_with_its_notes() -> None:
    for voice in (
        Voice(np.ones(8, np.float32)),
        Voice(np.ones(8, np.float32), np.ones((3, 16), np.int64), "hello 你好"),
    ):
        again, notes = Voice.from_bytes(voice.to_bytes({"name": "Anna"}))
        assert again == voice and notes == {"name": "Anna"}


def _file(header: bytes, content: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + content


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"RIFF",
        (2**63).to_bytes(8, "little") + b"{}",
        _file(b"[" * 100_000),
        _file(b"{}"),
        _file(b"[]"),
        _file(b'{"__metadata__":["format"]}'),
        _file(b'{"__metadata__":{"format":1}}'),
        _file(b'{"__metadata__":{"format":"oscine.voice.1","transcript":1}}'),
        _file(
            b'{"__metadata__":{"format":"oscine.voice.1"},"speaker":{"dtype":"F32","shape":[9],"data_offsets":[0,4]}}'
        ),
        Voice(np.ones(8, np.float32)).to_bytes()[:-1],
        Voice(np.ones(8, np.float32)).to_bytes()[:-1] + b"!",
        Voice(np.ones(8, np.float32)).to_bytes() + b"?",
    ],
)
def test_other_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(VoiceError, match=r"^the file "):
        Voice.from_bytes(content)


# Mixes


def test_a_mix_lies_between_its_voices_and_has_the_mean_of_their_lengths() -> None:
    """Halfway along a quarter of a circle, and a third of the way."""
    east, north = Voice.from_embedding([2.0, 0.0]), Voice.from_embedding([0.0, 4.0])
    half = 3 * np.sqrt(0.5)
    np.testing.assert_allclose(blended([(east, 1), (north, 1)]).speaker, [half, half], rtol=1e-6)
    third = np.array([np.cos(np.pi / 6), np.sin(np.pi / 6)]) * 8 / 3
    np.testing.assert_allclose(blended([(east, 2), (north, 1)]).speaker, third, rtol=1e-6)


def test_a_mix_depends_on_the_shares_alone_and_not_on_the_order() -> None:
    voices = [Voice(vector(seed)) for seed in range(3)]
    mixed = blended(list(zip(voices, (1, 2, 3), strict=True)))
    assert mixed == blended(list(zip(voices[::-1], (3, 2, 1), strict=True)))
    assert mixed == blended(list(zip(voices, (2, 4, 6), strict=True)))
    assert mixed != blended(list(zip(voices, (3, 2, 1), strict=True)))
    np.testing.assert_allclose(blended([(voices[0], 1e6), (voices[1], 1e-6)]).speaker, voices[0].speaker, atol=1e-5)


def test_a_mix_of_one_voice_is_its_timbre() -> None:
    assert blended([(in_context(), 0.3), (in_context(), 0.7)]) == Voice(vector())


def test_directions_that_nearly_agree_are_mixed_too() -> None:
    other = Voice(np.nextafter(vector(), np.float32(np.inf)))
    np.testing.assert_allclose(blended([(Voice(vector()), 1), (other, 1)]).speaker, vector(), rtol=1e-5)


@pytest.mark.parametrize(("other", "reason"), [(-vector(), "opposite directions"), (0 * vector(), "all zeros")])
def test_voices_with_nothing_between_them_are_refused(other: np.ndarray, reason: str) -> None:
    with pytest.raises(VoiceError, match=reason):
        blended([(Voice(vector()), 0.5), (Voice(other), 0.5)])
