"""Codes of the published weights are recognized, and others are told where they begin to differ."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from oscine.api import Oscine
from oscine.audio.clips import write_wav
from oscine.commands import doctor, published_runs
from oscine.commands.main import app
from oscine.commands.published_runs import (
    PUBLISHED_RUNS,
    PublishedRun,
    check_clip,
    equal_frames,
    leading_hashes,
    verdict,
)
from oscine.errors import EngineError
from oscine.request import SpeechRequest
from oscine.voice import Voice
from tests.conftest import CheckpointMaker
from tests.speech_like import speech_like

CODES = np.random.default_rng(0).integers(0, 2048, (41, 16))
RUN = PublishedRun("someone/Model", "custom_voice", 1024, 28, SpeechRequest(text="Hi."), leading_hashes(CODES))


def changed(frame: int) -> np.ndarray:
    codes = CODES.copy()
    codes[frame, 15] += 1
    return codes


def test_equal_codes_are_equal_for_all_frames() -> None:
    assert equal_frames(CODES, RUN) == 41
    assert verdict(CODES, RUN) == "greedy codes equal the published run's (41 of 41 frames, float32 on the CPU)"


@pytest.mark.parametrize("frame", [0, 15, 16, 40])
def test_the_first_frame_that_differs_is_named(frame: int) -> None:
    assert equal_frames(changed(frame), RUN) == frame
    if frame < 16:
        with pytest.raises(EngineError, match=f"at frame {frame} of 41: these are not the weights of someone/Model"):
            verdict(changed(frame), RUN)
    else:
        assert f"up to frame {frame} of 41" in verdict(changed(frame), RUN)


def test_a_run_that_goes_on_or_ends_early_is_not_equal() -> None:
    assert "up to frame 41 of 41" in verdict(np.concatenate([CODES, CODES]), RUN)
    assert "up to frame 30 of 41" in verdict(CODES[:30], RUN)


def test_what_is_asked_for_is_a_request_that_the_engine_takes() -> None:
    for run in PUBLISHED_RUNS:
        run.request.check()
        assert run.frames < run.request.max_new_tokens
        assert run.known_divergence is None or run.known_divergence < run.frames


def test_only_where_the_official_package_was_seen_to_differ_is_it_said() -> None:
    seen = replace(RUN, known_divergence=26)
    sentence = "the official package's own differ from frame 26 on between a GPU and a CPU"
    assert sentence in verdict(changed(26), seen) and sentence in verdict(changed(40), seen)
    for run, frame in ((seen, 25), (RUN, 26)):
        assert "sums in another order" in verdict(changed(frame), run) and sentence not in verdict(changed(frame), run)


def test_a_run_of_which_something_is_assumed_fails_no_checkpoint() -> None:
    assumed = replace(RUN, assumed="its language is assumed")
    said = "greedy codes differ from the published run's at frame 3 of 41; its language is assumed"
    assert verdict(changed(3), assumed) == said


def test_another_clip_is_told_from_the_published_one() -> None:
    numbers = [0.0317, -0.0134, 0.0051, -0.0557, -0.0398, 0.0462, -0.1128, -0.0762, 0.3]
    assert "in its first 8 numbers" in check_clip(Voice.from_embedding(numbers))
    with pytest.raises(EngineError, match=r"differs from the published one by 0\.05: this is not clone_2\.wav"):
        check_clip(Voice.from_embedding([numbers[0] + 0.05, *numbers[1:]]))


@pytest.mark.slow
def test_doctor_compares_a_checkpoint_of_that_shape(
    small_checkpoints: CheckpointMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small_checkpoints("0b6", "custom_voice")
    with Oscine(folder, device="cpu", dtype="float32", slots=1) as tts:
        request = SpeechRequest(text="Hello.", voice=tts.voices[0], greedy=True, max_new_tokens=20)
        codes, stack = tts.speak_batch([request])[0].codes, tts.config.talker.stack
    run = PublishedRun("someone/Small", "custom_voice", stack.width, stack.layers, request, leading_hashes(codes))
    other = replace(run, hashes=leading_hashes(codes + 1))
    for published, code, said in (
        (run, 0, f"published   greedy codes equal the published run's ({len(codes)} of {len(codes)} frames"),
        (other, 0, "published   other weights: greedy codes differ"),
        (replace(other, checkpoint=str(folder)), 1, "published   FAILED: greedy codes differ"),
        (replace(run, layers=99), 0, "official    not compared"),
    ):
        monkeypatch.setattr(doctor, "PUBLISHED_RUNS", (published,))
        result = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["doctor", str(folder), "--device", "cpu"])
        assert said in result.output and result.exit_code == code, result.output
        assert ("published " in result.output) == (published.layers != 99)


@pytest.mark.slow
def test_doctor_compares_a_base_checkpoint_with_the_voice_of_the_clip(
    small_checkpoints: CheckpointMaker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder, clip = small_checkpoints("0b6", "base"), tmp_path / "clip.wav"
    spoken = speech_like()
    write_wav(clip, spoken.samples, spoken.rate_hz)
    with Oscine(folder, device="cpu", dtype="float32", slots=1) as tts:
        request = SpeechRequest(text="Hello.", greedy=True, max_new_tokens=8)
        voice, stack = tts.clone(clip), tts.config.talker.stack
        codes = tts.speak_batch([replace(request, voice=voice)])[0].codes
    run = PublishedRun("someone/Base", "base", stack.width, stack.layers, request, leading_hashes(codes))
    monkeypatch.setattr(doctor, "PUBLISHED_RUNS", (run,))
    equal = f"published   greedy codes equal the published run's ({len(codes)} of {len(codes)} frames"
    for numbers, options, said in (
        (voice.speaker[:8], ["--reference-clip", str(clip)], equal),
        (voice.speaker[:8], [], "not compared: this run has the voice of clone_2.wav"),
    ):
        monkeypatch.setattr(published_runs, "VECTOR", tuple(numbers.tolist()))
        result = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["doctor", str(folder), "--device", "cpu", *options])
        assert said in result.output and result.exit_code == 0, result.output
