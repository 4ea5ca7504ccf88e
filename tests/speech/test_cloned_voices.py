"""Voices of clips: each clip is cloned once, with warnings, and a transcript where the server can make one."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oscine.align.aligner import AlignerError
from oscine.config import ServerConfig
from oscine.errors import NotReadyError, OverloadedError, VoiceError
from oscine.process.resources import Ledger
from oscine.server.http.errors import api_error
from oscine.speech.cloned_voices import ClonedVoices, clip_hash
from oscine.speech.limits import limits_of
from oscine.types import ClipData
from oscine.voice import Voice
from tests.align.scripted_whisper import HEARD, scripted_whisper
from tests.corpora.clips import tone, with_soundfile
from tests.manual_engine import ManualEngine
from tests.server import reference_clip
from tests.server.scripted_engine import BASE_CARD, ScriptedEngine
from tests.server.serving import client_of
from tests.speech_like import speech_like


def clip(hz: int) -> bytes:
    return with_soundfile(tone(hz=hz))


def hz_of(read: ClipData) -> int:
    assert isinstance(read, tuple)
    return round(int(np.abs(np.fft.rfft(read[0])).argmax()) * read[1] / len(read[0]))


CLIP = clip(100)


class BlockedEngine(ManualEngine):
    """Its `clone` can be blocked."""

    def __init__(self) -> None:
        super().__init__()
        self.clips: list[tuple[int, str | None]] = []
        self.go = threading.Event()
        self.go.set()

    def clone(self, clip: ClipData, transcript: str | None = None) -> Voice:
        self.clips.append((hz_of(clip), transcript))
        assert self.go.wait(600)
        if self.error is not None:
            raise self.error
        return Voice(np.full(8, len(self.clips), np.float32))


def with_voices(
    use: Callable[[ClonedVoices, BlockedEngine], Awaitable[None]], changed: Any = None, **limits: Any
) -> None:
    """`changed`: changed limits of the ledger, by kind."""
    changed = changed or {}

    async def run() -> None:
        engine = BlockedEngine()
        ledger = Ledger(replace(one, **changed.get(one.kind, {})) for one in limits_of(ServerConfig()))
        voices = ClonedVoices(engine, ledger, **limits)
        try:
            await use(voices, engine)
        finally:
            engine.go.set()
            ledger.close()

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(600):
        while not condition():
            await asyncio.sleep(0.001)


def test_a_clip_is_cloned_once() -> None:
    async def use(voices: ClonedVoices, engine: BlockedEngine) -> None:
        engine.go.clear()
        pending = [asyncio.create_task(voices.get(bytes(CLIP), "hello")) for _ in range(5)]
        await until(lambda: len(engine.clips) == 1)
        engine.go.set()
        made = await asyncio.gather(*pending)
        assert len({id(voice) for voice in made}) == 1
        assert await voices.get(CLIP, "hello") is made[0]
        assert engine.clips == [(100, "hello")]

    with_voices(use)


def test_another_clip_or_transcript_gives_another_voice() -> None:
    async def use(voices: ClonedVoices, engine: BlockedEngine) -> None:
        sources = [(100, None), (100, ""), (100, "hello"), (200, None), (300, "hello")]
        made = [await voices.get(clip(hz), transcript) for hz, transcript in sources]
        assert len({one.voice.content_hash for one in made}) == len(sources)
        assert engine.clips == sources

    with_voices(use)
    assert len({clip_hash(*one) for one in [(b"ab", "c"), (b"a", "bc"), (b"abc", ""), (b"abc", None)]}) == 4


def test_a_disconnect_does_not_cancel_the_clone_for_others() -> None:
    async def use(voices: ClonedVoices, engine: BlockedEngine) -> None:
        engine.go.clear()
        first, second = (asyncio.create_task(voices.get(CLIP)) for _ in range(2))
        await until(lambda: len(engine.clips) == 1)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        engine.go.set()
        await second
        await voices.get(CLIP)
        assert len(engine.clips) == 1

    with_voices(use)


def test_an_error_is_raised_to_all_waiting_requests_and_not_cached() -> None:
    async def use(voices: ClonedVoices, engine: BlockedEngine) -> None:
        engine.error = VoiceError("silent", "ref_audio")
        outcomes = await asyncio.gather(*(voices.get(CLIP) for _ in range(3)), return_exceptions=True)
        assert [str(outcome) for outcome in outcomes] == ["silent"] * 3
        engine.error = None
        assert isinstance((await voices.get(CLIP)).voice, Voice)

    with_voices(use)


def test_the_least_recently_used_voice_is_evicted_first() -> None:
    async def use(voices: ClonedVoices, engine: BlockedEngine) -> None:
        for hz in (100, 200, 100, 300, 100, 200):
            await voices.get(clip(hz))
        assert [hz for hz, _ in engine.clips] == [100, 200, 300, 200]

    with_voices(use, max_voices=2)


def test_too_many_pending_clones_are_refused_and_cached_voices_are_not() -> None:
    async def use(voices: ClonedVoices, engine: BlockedEngine) -> None:
        known = await voices.get(clip(50))
        engine.go.clear()
        pending = [asyncio.create_task(voices.get(clip(hz))) for hz in (100, 200)]
        await until(lambda: len(engine.clips) == 2)
        again = asyncio.create_task(voices.get(clip(100)))
        with pytest.raises(OverloadedError):
            await voices.get(clip(300))
        assert await voices.get(clip(50)) is known
        engine.go.set()
        assert (await again) is (await pending[0])
        await pending[1]
        await voices.get(clip(300))

    with_voices(use, {"clone": {"threads": 1, "in_all": 2}})


def test_a_clip_that_clones_badly_is_cloned_with_a_warning() -> None:
    async def use(voices: ClonedVoices, engine: BlockedEngine) -> None:
        good = await voices.get(with_soundfile(speech_like().samples), "ba " * 24)
        assert good.warnings == ()
        hum = await voices.get(CLIP)
        assert hum.warnings == ("the clip seems to hold no speech; record 3 to 20 s of one speaker",)
        assert (await voices.get(CLIP)).warnings == hum.warnings  # from the cache

    with_voices(use)


def test_a_clip_without_a_transcript_is_trimmed_and_transcribed_where_asked() -> None:
    heard: list[float] = []

    async def transcribe(samples: Any, rate_hz: int) -> str:
        heard.append(len(samples) / rate_hz)
        return " ba ba \n"

    async def use(voices: ClonedVoices, engine: BlockedEngine) -> None:
        await voices.get(with_soundfile(speech_like(20).samples), "auto")
        assert engine.clips[0][1] == "ba ba"
        assert 15 < heard[0] <= 20  # of 40 s

    with_voices(use, transcribe=transcribe)


def test_a_clip_in_which_nothing_is_heard_needs_a_transcript() -> None:
    async def use(voices: ClonedVoices, engine: BlockedEngine) -> None:
        with pytest.raises(VoiceError, match="no words were recognized") as caught:
            await voices.get(CLIP, "auto")
        assert caught.value.param == "ref_text" and not engine.clips

    async def nothing(samples: Any, rate_hz: int) -> str:
        return " "

    with_voices(use, transcribe=nothing)


def test_a_transcriber_that_fails_is_no_fault_of_the_clip() -> None:
    async def fail(samples: Any, rate_hz: int) -> str:
        raise AlignerError("the aligner is too busy: 64 jobs wait")

    async def use(voices: ClonedVoices, engine: BlockedEngine) -> None:
        with pytest.raises(NotReadyError, match="could not be transcribed: the aligner is too busy") as caught:
            await voices.get(CLIP, "auto")
        assert (api_error(caught.value).status, caught.value.param) == (503, "ref_text")
        assert (await voices.get(CLIP, "words")).voice is not None

    with_voices(use, transcribe=fail)


def test_the_aligner_of_the_server_transcribes_clips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: ScriptedEngine
) -> None:
    whisper = scripted_whisper(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "library"))
    with client_of(engine, BASE_CARD, ServerConfig(aligner=str(whisper), aligner_wait_s=600)) as client:
        form = {"name": "anna", "consent": "hers", "ref_text": "auto"}
        stored = client.post("/v1/audio/voices", data=form, files={"audio_sample": reference_clip.CLIP}).json()
        assert (stored["ref_text"], stored["mode"]) == (HEARD, "in_context")
        body = {"input": "Hi.", "ref_audio": reference_clip.CLIP_URL, "ref_text": "auto"}
        assert client.post("/v1/audio/speech", json=body).status_code == 200
    (request,) = engine.requests
    assert isinstance(request.voice, Voice) and request.voice.transcript == HEARD


def test_a_server_that_cannot_transcribe_says_so() -> None:
    async def use(voices: ClonedVoices, engine: BlockedEngine) -> None:
        with pytest.raises(VoiceError, match="needs a server with an aligner") as caught:
            await voices.get(CLIP, "auto")
        assert caught.value.param == "ref_text"

    with_voices(use)
