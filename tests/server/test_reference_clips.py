"""Clips come from the request or from where they may, and become a voice once. Addresses: test_clip_urls.py."""

import asyncio
import base64
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from oscine.server.errors import ApiError
from oscine.server.reference_clips import ClipPolicy, ClipVoices, clip_hash, fetch_clip
from oscine.types import OverloadedError, VoiceError
from oscine.voice import Voice

CLIP = bytes(range(256)) * 3
ENCODED = base64.b64encode(CLIP).decode()


def fetch(source: str, policy: ClipPolicy = ClipPolicy()) -> bytes:  # noqa: B008 (frozen)
    return asyncio.run(fetch_clip(source, policy))


def refused(status: int, source: str, policy: ClipPolicy = ClipPolicy()) -> str:  # noqa: B008 (frozen)
    with pytest.raises(ApiError) as caught:
        fetch(source, policy)
    assert (caught.value.status, caught.value.param) == (status, "ref_audio")
    return caught.value.message


# In the request itself


@pytest.mark.parametrize(
    "source",
    [
        ENCODED,
        ENCODED.rstrip("="),
        f"\n {ENCODED[:76]}\r\n{ENCODED[76:]}\n",
        base64.urlsafe_b64encode(CLIP).decode(),
        f"data:audio/wav;base64,{ENCODED}",
        f"DATA:;BASE64,{ENCODED}",
        f'data:audio/webm;codecs="opus";base64,{ENCODED.replace("+", "%2B").replace("/", "%2F")}',
        "data:application/octet-stream," + "".join(f"%{byte:02x}" for byte in CLIP),
    ],
    ids=["bare", "unpadded", "wrapped", "urlsafe", "data", "no type", "escaped", "percent"],
)
def test_every_spelling_of_the_same_bytes_gives_them(source: str) -> None:
    assert fetch(source) == CLIP
    assert fetch(source, ClipPolicy(max_bytes=len(CLIP))) == CLIP
    assert "the limit here" in refused(413, source, ClipPolicy(max_bytes=len(CLIP) - 1))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("", "ref_audio is empty"),
        ("data:audio/wav;base64,", "ref_audio is empty"),
        ("data:audio/wav;base64", "without a comma"),
        ("clip.wav", "'clip.wav' is not base64"),
        ("data:audio/wav;base64,A", "'A' is not base64"),
        ("größe", "is not base64"),
        ("ftp://host/clip.wav", "cannot be a ftp: address; give the clip as data: URL or base64"),
        ("C:\\clips\\clip.wav", "cannot be a c: address"),
    ],
)
def test_what_holds_no_clip_is_refused_with_what_would(source: str, said: str) -> None:
    with pytest.raises(VoiceError) as caught:
        fetch(source)
    assert said in str(caught.value) and caught.value.param == "ref_audio"


# Files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    below = tmp_path / "clips"
    (below / "more").mkdir(parents=True)
    (below / "more" / "a clip.wav").write_bytes(CLIP)
    (tmp_path / "secret.wav").write_bytes(b"secret")
    (below / "out.wav").symlink_to(tmp_path / "secret.wav")
    (below / "in.wav").symlink_to(below / "more" / "a clip.wav")
    (below / "loop.wav").symlink_to(below / "loop.wav")
    os.mkfifo(below / "pipe.wav")
    return below


def test_files_are_not_read_unless_allowed(folder: Path) -> None:
    assert "ref_files_below" in refused(403, f"file://{folder}/in.wav")


def test_files_below_the_folder_are_read(folder: Path) -> None:
    policy = ClipPolicy(files_below=folder)
    for source in (f"file://{folder}/more/a%20clip.wav", f"file://localhost{folder}/in.wav", f"FILE:{folder}/in.wav"):
        assert fetch(source, policy) == CLIP
    refused(413, f"file://{folder}/in.wav", ClipPolicy(files_below=folder, max_bytes=10))


@pytest.mark.parametrize(
    "path", ["out.wav", "../secret.wav", "more/%2e%2e/../../secret.wav", "../none", "more", "pipe.wav"]
)
def test_nothing_else_is_read_and_nobody_learns_what_is_there(folder: Path, path: str) -> None:
    message = refused(403, f"file://{folder}/{path}", ClipPolicy(files_below=folder))
    assert "secret" not in message and str(folder.parent / "none") not in message
    refused(403, "file:///etc/passwd", ClipPolicy(files_below=folder))
    refused(403, f"file://elsewhere{folder}/in.wav", ClipPolicy(files_below=folder))


@pytest.mark.parametrize("path", ["none.wav", "loop.wav", "a%00b"])
def test_a_file_that_is_not_there_is_the_clients_mistake(folder: Path, path: str) -> None:
    with pytest.raises(VoiceError, match="cannot be read"):
        fetch(f"file://{folder}/{path}", ClipPolicy(files_below=folder))


# Voices of clips


class Cloner:
    """The one method of an engine that is needed here; it can be held up."""

    def __init__(self) -> None:
        self.clips: list[tuple[bytes, str | None]] = []
        self.go = threading.Event()
        self.go.set()
        self.error: Exception | None = None

    def clone(self, clip: bytes, transcript: str | None = None) -> Voice:
        self.clips.append((clip, transcript))
        assert self.go.wait(20)
        if self.error is not None:
            raise self.error
        return Voice(np.full(8, len(self.clips), np.float32))


def with_voices(use: Callable[[ClipVoices, Cloner], Awaitable[None]], **limits: int) -> None:
    async def run() -> None:
        cloner = Cloner()
        voices = ClipVoices(cloner, **limits)  # type: ignore[arg-type]
        try:
            await use(voices, cloner)
        finally:
            cloner.go.set()
            voices.close()

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


def test_a_clip_is_cloned_once() -> None:
    async def use(voices: ClipVoices, cloner: Cloner) -> None:
        cloner.go.clear()
        asking = [asyncio.create_task(voices.voice(bytes(CLIP), "hello")) for _ in range(5)]
        await until(lambda: len(cloner.clips) == 1)
        cloner.go.set()
        made = await asyncio.gather(*asking)
        assert len({id(voice) for voice in made}) == 1
        assert await voices.voice(CLIP, "hello") is made[0]
        assert cloner.clips == [(CLIP, "hello")]

    with_voices(use)


def test_another_clip_or_transcript_is_another_voice() -> None:
    async def use(voices: ClipVoices, cloner: Cloner) -> None:
        asked = [(CLIP, None), (CLIP, ""), (CLIP, "hello"), (CLIP[1:], None), (b"", "hello")]
        made = [await voices.voice(*one) for one in asked]
        assert len({voice.content_hash for voice in made}) == len(asked)
        assert cloner.clips == asked

    with_voices(use)
    assert len({clip_hash(*one) for one in [(b"ab", "c"), (b"a", "bc"), (b"abc", ""), (b"abc", None)]}) == 4


def test_who_leaves_does_not_end_the_cloning_for_others() -> None:
    async def use(voices: ClipVoices, cloner: Cloner) -> None:
        cloner.go.clear()
        first, second = (asyncio.create_task(voices.voice(CLIP)) for _ in range(2))
        await until(lambda: len(cloner.clips) == 1)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        cloner.go.set()
        await second
        await voices.voice(CLIP)
        assert len(cloner.clips) == 1

    with_voices(use)


def test_an_error_is_told_to_all_who_wait_and_not_kept() -> None:
    async def use(voices: ClipVoices, cloner: Cloner) -> None:
        cloner.error = VoiceError("silent", "ref_audio")
        outcomes = await asyncio.gather(*(voices.voice(CLIP) for _ in range(3)), return_exceptions=True)
        assert [str(outcome) for outcome in outcomes] == ["silent"] * 3
        cloner.error = None
        assert isinstance(await voices.voice(CLIP), Voice)

    with_voices(use)


def test_the_least_recently_used_voice_leaves_first() -> None:
    async def use(voices: ClipVoices, cloner: Cloner) -> None:
        for clip in (b"a", b"b", b"a", b"c", b"a", b"b"):
            await voices.voice(clip)
        assert [clip for clip, _ in cloner.clips] == [b"a", b"b", b"c", b"b"]

    with_voices(use, most=2)


def test_more_clonings_than_can_wait_are_refused_and_known_voices_are_not() -> None:
    async def use(voices: ClipVoices, cloner: Cloner) -> None:
        known = await voices.voice(b"known")
        cloner.go.clear()
        asking = [asyncio.create_task(voices.voice(clip)) for clip in (b"a", b"b")]
        await until(lambda: len(cloner.clips) == 2)
        again = asyncio.create_task(voices.voice(b"a"))
        with pytest.raises(OverloadedError):
            await voices.voice(b"c")
        assert await voices.voice(b"known") is known
        cloner.go.set()
        assert (await again) is (await asking[0])
        await asking[1]
        await voices.voice(b"c")

    with_voices(use, threads=1, max_waiting=2)
