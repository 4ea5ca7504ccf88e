"""Every mode through the host of the models, without Triton: samples and codes against an engine of our own."""

from __future__ import annotations

import base64
import io
import queue
import wave
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from oscine.deploy.tritonserver.speech_host import SpeechHost
from oscine.deploy.tritonserver.speech_joiner import CodecShape, SpeechJoiner, TalkerPart, Window
from oscine.errors import ConfigError, RequestError
from oscine.model.weights import load_model
from oscine.serving.settings import Settings, load_settings
from tests.conftest import CheckpointMaker
from tests.engine.recorder import WAIT_S

pytestmark = pytest.mark.slow

RATE_HZ = 24000
LEFT, NEW = 30, 8


class Response:
    """Records one answer."""

    def __init__(self) -> None:
        self._sent: queue.SimpleQueue[tuple[Any, bool]] = queue.SimpleQueue()

    def send(self, values: Any, *, final: bool) -> None:
        self._sent.put((values, final))

    def fail(self, error: Exception) -> None:
        self._sent.put((error, True))

    def end(self) -> None:
        self._sent.put((None, True))

    def is_cancelled(self) -> bool:
        return False

    def all(self) -> list[Any]:
        values, final = self._sent.get(timeout=WAIT_S)
        sent = [values]
        while not final:
            values, final = self._sent.get(timeout=WAIT_S)
            sent.append(values)
        return sent


def settings(folder: Any) -> Settings:
    """Nothing is refused because this machine is slow; random weights make noise, which is no runaway."""
    options = {"engine.queue_wait_s": 3600.0, "engine.pacing.real_time_share": 1.0, "engine.runaway.enabled": False}
    return load_settings(None, {"model": str(folder), "devices": "cpu", "engine.slots": 2, **options})


class Hosts:
    def __init__(self, folder: Any) -> None:
        self.whole = SpeechHost(settings(folder), 0, codec=True)
        self.talker = SpeechHost(settings(folder), 0, codec=False)
        self.codec = load_model(folder, device=torch.device("cpu"), parts=["codec"]).codec

    def ask(self, host: SpeechHost, **tensors: Any) -> list[Any]:
        response = Response()
        host.answer("", tensors, response)
        return response.all()

    def samples(self, **tensors: Any) -> np.ndarray:
        return np.concatenate([values["audio"] for values in self.ask(self.whole, **tensors)])

    def split_samples(self, **tensors: Any) -> np.ndarray:
        """The talker's codes, decoded in windows."""
        parts = self.ask(self.talker, **tensors)
        shape = CodecShape(LEFT, NEW, self.codec.config.samples_per_frame, RATE_HZ)
        trim, segments = bool(parts[0]["trim_silence"]), parts[0]["segments"]
        trim_config = settings("demo").engine.trim_silence
        joiner = SpeechJoiner(shape, self._decode, trim_config, trim_silence=trim, segments=segments)
        return np.concatenate(
            [
                joiner.push(TalkerPart(one["codes"], one["context_codes"], one["segment_end"], one["final"]))
                for one in parts
            ]
        )

    @torch.inference_mode()
    def _decode(self, windows: Sequence[Window]) -> list[np.ndarray]:
        per_frame, rows = self.codec.config.samples_per_frame, []
        for window in windows:
            samples, _ = self.codec.decode(torch.tensor(window.codes)[None])
            rows.append(samples[0, window.context_frames * per_frame :][: NEW * per_frame].numpy())
        return rows

    def stop(self) -> None:
        self.whole.stop()
        self.talker.stop()


@pytest.fixture(scope="module")
def base(small_checkpoints: CheckpointMaker) -> Iterator[Hosts]:
    hosts = Hosts(small_checkpoints("0b6", "base"))
    yield hosts
    hosts.stop()


def clip() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(RATE_HZ)
        writer.writeframes((np.random.default_rng(1).normal(0, 3000, RATE_HZ)).astype("<i2").tobytes())
    return file.getvalue()


CLONED: dict[str, dict[str, Any]] = {
    "the timbre of a clip": {"ref_audio": clip()},
    "a clip with its transcript": {"ref_audio": clip(), "ref_text": b"hello you"},
    "a clip as base64": {"ref_audio": base64.b64encode(clip()), "ref_text": b"hello you", "x_vector_only_mode": True},
}


@pytest.mark.parametrize("name", CLONED)
def test_a_cloned_voice_is_the_same_both_ways(base: Hosts, name: str) -> None:
    fields = {"text": b"Hello there, you.", "seed": 5, "max_new_tokens": 12, **CLONED[name]}
    whole, split = base.samples(**fields), base.split_samples(**fields)
    assert len(whole) == len(split) > 0
    assert np.abs(whole.astype(int) - split).max() <= 2


def test_a_clip_as_bytes_and_as_base64_is_the_same_voice(base: Hosts) -> None:
    fields = {"text": b"Hello.", "seed": 5, "max_new_tokens": 6}
    as_bytes = base.samples(**fields, ref_audio=clip())
    assert np.array_equal(as_bytes, base.samples(**fields, ref_audio=base64.b64encode(clip())))
    (error,) = base.ask(base.whole, text=b"Hello.", ref_audio=b"\0\1\2")
    assert isinstance(error, RequestError), error


def test_a_pause_is_exact_and_the_split_models_refuse_it(base: Hosts) -> None:
    fields = {"seed": 5, "max_new_tokens": 6, "ref_audio": clip()}
    paused = base.samples(**fields, text=b'<break time="300ms"/>Hello.')
    pause = RATE_HZ * 3 // 10
    assert not paused[:pause].any()
    assert np.array_equal(paused[pause:], base.samples(**fields, text=b"Hello."))
    (error,) = base.ask(base.talker, **fields, text=b"Hello.<break/>")
    assert "use the model oscine" in str(error)


def test_a_described_voice_speaks(small_checkpoints: CheckpointMaker) -> None:
    host = SpeechHost(settings(small_checkpoints("1b7", "voice_design")), 0, codec=True)
    try:
        spoken, refused = Response(), Response()
        host.answer("", {"text": b"Hello.", "instructions": b"A calm voice.", "seed": 5, "max_new_tokens": 5}, spoken)
        host.answer("", {"text": b"Hello."}, refused)
        assert spoken.all()[-1]["finish_reason"] == "length"
        assert "needs a description of the voice" in str(refused.all()[0])
        assert host.figures().status.slots == 2
    finally:
        host.stop()


def test_an_instance_without_a_device_is_refused(small_checkpoints: CheckpointMaker) -> None:
    with pytest.raises(ConfigError, match=r"instance 1 of the model has no device: settings\.toml names 1"):
        SpeechHost(settings(small_checkpoints("0b6", "base")), 1, codec=True)
