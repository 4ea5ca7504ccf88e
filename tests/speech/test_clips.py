"""Reading clips from requests and files. URLs: test_reference_clip_urls.py."""

import asyncio
import base64
import os
from pathlib import Path
from typing import Any

import pytest

from oscine.errors import RequestError, VoiceError
from oscine.server.http.errors import api_error
from oscine.speech import clips as inline_clips
from oscine.speech.clips import ClipPolicy, decode_base64, fetch_clip

CLIP = bytes(range(256)) * 3
ENCODED = base64.b64encode(CLIP).decode()


def fetch(source: str, policy: ClipPolicy = ClipPolicy()) -> bytes:  # noqa: B008 (frozen)
    return asyncio.run(fetch_clip(source, policy))


def refused(status: int, source: str, policy: ClipPolicy = ClipPolicy()) -> str:  # noqa: B008 (frozen)
    with pytest.raises(RequestError) as caught:
        fetch(source, policy)
    assert (api_error(caught.value).status, caught.value.param) == (status, "ref_audio")
    return str(caught.value)


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
def test_every_encoding_of_a_clip_in_a_request_is_decoded(source: str) -> None:
    assert fetch(source) == CLIP
    assert fetch(source, ClipPolicy(max_bytes=len(CLIP))) == CLIP
    assert "exceeds the limit" in refused(413, source, ClipPolicy(max_bytes=len(CLIP) - 1))


ENCODINGS = [
    ENCODED,
    f"\n {ENCODED[:76]}\r\n{ENCODED[76:]}\n",
    f"data:;base64,{ENCODED.replace('+', '%2B').replace('/', '%2f').replace('=', '%3D')}",
    "data:," + "".join(f"%{byte:02x}" for byte in CLIP),
]


@pytest.mark.parametrize("source", ENCODINGS, ids=["bare", "wrapped", "escaped", "percent"])
@pytest.mark.parametrize("slice_chars", [4, 5, 7, 100])
def test_slices_do_not_change_a_clip(monkeypatch: pytest.MonkeyPatch, source: str, slice_chars: int) -> None:
    monkeypatch.setattr(inline_clips, "SLICE_CHARS", slice_chars)
    for size in (*range(1, 12), len(CLIP)):
        assert decode_base64(base64.b64encode(CLIP[:size]).decode(), 1000) == CLIP[:size]
    assert fetch(source) == CLIP
    with pytest.raises(VoiceError, match=r"data after (its )?padding"):
        decode_base64("QQ==" + ENCODED, 1000)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("data:,\ud800", "half a surrogate pair"),
        ("data:;base64,\ud800", "it has non-ASCII characters"),
        ("data:," + "%41" * 70_000, "more than 65536 percent-encoded bytes; encode the clip as base64"),
        ("", "ref_audio is empty"),
        ("data:audio/wav;base64,", "ref_audio is empty"),
        ("data:audio/wav;base64", "without a comma"),
        ("clip.wav", "'clip.wav' is neither a URL nor base64"),
        ("/voices/my_clip-1.wav", "'/voices/my_clip-1.wav' is neither a URL nor base64"),
        ("data:audio/wav;base64,A", "'A' is neither a URL nor base64"),
        ("größe", "is neither a URL nor base64 (it has non-ASCII characters)"),
        ("ftp://host/clip.wav", "cannot be a ftp: URL; give the clip as data: URL or base64"),
        ("C:\\clips\\clip.wav", "cannot be a c: URL"),
    ],
)
def test_a_source_without_a_clip_is_refused_with_the_possible_forms(source: str, message: str) -> None:
    with pytest.raises(VoiceError) as caught:
        fetch(source)
    assert message in str(caught.value) and caught.value.param == "ref_audio"


@pytest.mark.parametrize("source", ["A " * 2000, "data:," + "%41" * 4000, "http://example.com/" + "a" * 9000])
def test_an_overlong_source_is_refused_before_it_is_decoded(source: str) -> None:
    with pytest.raises(RequestError, match="limit"):
        fetch(source, ClipPolicy(urls=True, max_bytes=1000))


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


def test_files_are_not_read_by_default(folder: Path) -> None:
    assert "ref_files_below" in refused(403, f"file://{folder}/in.wav")


def test_files_below_the_folder_are_read(folder: Path) -> None:
    policy = ClipPolicy(files_below=folder)
    for source in (f"file://{folder}/more/a%20clip.wav", f"file://localhost{folder}/in.wav", f"FILE:{folder}/in.wav"):
        assert fetch(source, policy) == CLIP
    refused(413, f"file://{folder}/in.wav", ClipPolicy(files_below=folder, max_bytes=10))


@pytest.mark.parametrize(
    "path", ["out.wav", "../secret.wav", "more/%2e%2e/../../secret.wav", "../none", "more", "pipe.wav"]
)
def test_other_files_are_not_read_and_their_existence_is_not_revealed(folder: Path, path: str) -> None:
    message = refused(403, f"file://{folder}/{path}", ClipPolicy(files_below=folder))
    assert "secret" not in message and str(folder.parent / "none") not in message
    refused(403, "file:///etc/passwd", ClipPolicy(files_below=folder))
    refused(403, f"file://elsewhere{folder}/in.wav", ClipPolicy(files_below=folder))


def test_a_bare_path_below_the_folder_is_read(folder: Path) -> None:
    policy = ClipPolicy(files_below=folder)
    for source in (f"{folder}/more/a clip.wav", "more/a clip.wav", "./in.wav", " in.wav\n", "more/../in.wav"):
        assert fetch(source, policy) == CLIP
    for source in ("out.wav", "../secret.wav", "/etc/host.conf", f"{folder}/../secret.wav", "pipe.wav"):
        assert "secret" not in refused(403, source, policy)
    with pytest.raises(VoiceError, match=r"'none\.wav' cannot be read"):
        fetch("none.wav", policy)


def test_base64_is_not_taken_for_a_path(folder: Path) -> None:
    clip = b"\xff\xfb\x90" + CLIP  # its base64 begins with a slash, as that of many mp3 files does
    assert fetch(base64.b64encode(clip).decode(), ClipPolicy(files_below=folder)) == clip


@pytest.mark.parametrize("path", ["none.wav", "loop.wav", "a%00b"])
def test_a_missing_file_is_a_client_error(folder: Path, path: str) -> None:
    with pytest.raises(VoiceError, match="cannot be read"):
        fetch(f"file://{folder}/{path}", ClipPolicy(files_below=folder))


def test_a_loop_of_links_does_not_reveal_the_folder(folder: Path) -> None:
    with pytest.raises(VoiceError, match=r"'loop\.wav' cannot be read: Too many levels") as caught:
        fetch("loop.wav", ClipPolicy(files_below=folder))
    assert str(folder) not in str(caught.value)


def test_a_folder_that_becomes_a_link_meanwhile_is_not_followed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "a clip.wav").write_bytes(b"secret")
    open_file = os.open

    def swap_and_open(*arguments: Any, **options: Any) -> int:
        if not (folder / "more").is_symlink():
            (folder / "more").rename(folder / "moved")
            (folder / "more").symlink_to(outside)
        return open_file(*arguments, **options)

    monkeypatch.setattr(os, "open", swap_and_open)
    with pytest.raises(VoiceError, match="cannot be read"):
        fetch("more/a clip.wav", ClipPolicy(files_below=folder))
