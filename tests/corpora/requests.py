"""Requests that strangers might send. Some of them used to hold the event loop, and so every stream, for seconds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

MIB = 2**20
SPEECH, BATCH, VOICES, ENCODE = "/v1/audio/speech", "/v1/audio/speech/batch", "/v1/audio/voices", "/v1/audio/encode"
STORED_VOICE = "the-long-name-of-a-stored-voice-with-the-number"  # the server has a thousand that begin like this
_JSON = {"content-type": "application/json"}


@dataclass(frozen=True)
class RequestCase:
    make_body: Callable[[], bytes]
    status: int
    path: str = SPEECH
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=lambda: _JSON)


def speech(**fields: Any) -> bytes:
    return json.dumps({"input": "hello", **fields}).encode()


def raw(before: bytes, repeated: bytes, size: int, after: bytes) -> bytes:
    return before + repeated * (size // len(repeated)) + after


def form(charset: str | None = None, **fields: bytes) -> tuple[dict[str, str], bytes]:
    """Headers and body of an upload; `audio_sample` is a file."""
    parts = []
    for name, value in fields.items():
        file = '; filename="a.wav"' if name == "audio_sample" else ""
        parts.append(f'--x\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + value + b"\r\n")
    suffix = f"; charset={charset}" if charset else ""
    return {"content-type": f"multipart/form-data; boundary=x{suffix}"}, b"".join(parts) + b"--x--\r\n"


def voice_file(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


def upload(status: int, charset: str | None = None, **fields: bytes) -> RequestCase:
    headers, body = form(charset, **{"name": b"anna", "consent": b"hers", **fields})
    return RequestCase(lambda: body, status, VOICES, headers=headers)


REQUESTS: dict[str, RequestCase] = {
    "a plain request": RequestCase(lambda: speech(speaker_embedding=[0.5] * 8), 200),
    # Long strings.
    "a clip percent-encoded": RequestCase(
        lambda: raw(b'{"input": "x", "ref_audio": "data:audio/wav,', b"%41", 30 * MIB, b'"}'), 413
    ),
    "a clip percent-encoded, within the limit": RequestCase(
        lambda: raw(b'{"input": "x", "ref_audio": "data:audio/wav,', b"%41", 9 * MIB, b'"}'), 400
    ),
    "base64 percent-encoded": RequestCase(
        lambda: raw(b'{"input": "x", "ref_audio": "data:audio/wav;base64,', b"%41", 12 * MIB, b'"}'), 400
    ),
    "base64 with quoted signs": RequestCase(
        lambda: raw(b'{"input": "x", "ref_audio": "data:audio/wav;base64,', b"QUJ%2B", 12 * MIB, b'"}'), 400
    ),
    "base64 as PHP escapes it": RequestCase(
        lambda: raw(b'{"input": "x", "ref_audio": "data:audio\\/wav;base64,', b"QU\\/C", 12 * MIB, b'"}'), 400
    ),
    "bytes in base64 that are no clip": RequestCase(
        lambda: raw(b'{"input": "x", "ref_audio": "', b"QUJD", 13 * MIB, b'"}'), 400
    ),
    "a clip in base64, too large": RequestCase(
        lambda: raw(b'{"input": "x", "ref_audio": "', b"QUJD", 30 * MIB, b'"}'), 413
    ),
    "base64 that is none": RequestCase(
        lambda: raw(b'{"input": "x", "ref_audio": "QUJD', b"!!!!", 12 * MIB, b'"}'), 400
    ),
    "base64 with spaces": RequestCase(
        lambda: raw(b'{"input": "x", "ref_audio": "', b"Q U J D ", 12 * MIB, b'"}'), 400
    ),
    "spaces and nothing else": RequestCase(
        lambda: raw(b'{"input": "x", "ref_audio": "', b" ", 30 * MIB, b'"}'), 413
    ),
    "many clips": RequestCase(
        lambda: b'{"input": "x", "ref_audio": [' + b",".join([b'"QUJD"'] * 34_000) + b"]}", 400
    ),
    "half a character as a clip": RequestCase(lambda: b'{"input": "x", "ref_audio": "data:,\\ud800"}', 400),
    "half a character as base64": RequestCase(lambda: b'{"input": "x", "ref_audio": "\\ud800"}', 400),
    **{
        f"a long {name}": RequestCase(lambda name=name: speech(**{name: "a" * (20 * MIB)}), status)
        for name, status in (
            *(("voice", 400), ("speaker", 400), ("model", 400), ("language", 400), ("instructions", 400)),
            *(("response_format", 400), ("ref_text", 400), ("task_type", 400), ("input", 413), ("seed", 400)),
            ("unknown_field", 200),
        )
    },
    "a voice longer than any clip": RequestCase(lambda: speech(voice="a" * (30 * MIB)), 413),
    "a long name of a field": RequestCase(lambda: speech(**{"a" * (20 * MIB): 1}), 200),
    "a long voice id": RequestCase(lambda: speech(voice={"id": "a" * (20 * MIB)}), 400),
    "a long reference": RequestCase(lambda: speech(references=[{"audio_path": "a" * (20 * MIB)}]), 413),
    "a long text of letters beyond ASCII": RequestCase(
        lambda: raw(b'{"input": "', "é".encode(), 30 * MIB, b'"}'), 413
    ),
    "a long text of escapes": RequestCase(lambda: raw(b'{"input": "', b"\\u0041", 30 * MIB, b'"}'), 413),
    "a text of the longest length": RequestCase(lambda: speech(input="word. " * 33_000, voice="x"), 400),
    "a text of one long word": RequestCase(lambda: speech(input="a" * 199_000, voice="x"), 400),
    "a text of full stops": RequestCase(lambda: speech(input="." * 199_000, voice="x"), 400),
    "a text of spaces": RequestCase(lambda: speech(input=" " * 199_000, voice="x"), 400),
    # Names that are nearly others.
    "a misspelt voice": RequestCase(lambda: speech(voice=f"{STORED_VOICE:b<64}"), 400),
    "a misspelt model": RequestCase(lambda: speech(model="tts-" * 60), 404),
    "a misspelt field": RequestCase(lambda: speech(**{"speaker_embeddin" * 5: 1}), 200),
    # Many values.
    "many numbers": RequestCase(lambda: raw(b'{"input": "x", "speaker_embedding": [', b"1,", MIB, b"1]}"), 413),
    "many allowed numbers": RequestCase(
        lambda: speech(speaker_embedding=[0.123456789] * 60_000), 400
    ),
    "many keys": RequestCase(
        lambda: b"{" + b",".join(b'"k%d": 1' % number for number in range(34_000)) + b"}", 400
    ),
    "many lists": RequestCase(lambda: raw(b'{"input": [', b"[],", 3 * 34_000, b"1]}"), 400),
    "deep lists": RequestCase(lambda: b'{"input": ' + b"[" * 60_000 + b"]" * 60_000 + b"}", 400),
    "long numbers": RequestCase(lambda: raw(b'{"seed": [', b"9" * 4299 + b",", 30 * MIB, b"1]}"), 413),
    "long numbers in a small body": RequestCase(lambda: raw(b'{"seed": [', b"9" * 4299 + b",", 3 * MIB, b"1]}"), 413),
    "long numbers in a smaller body": RequestCase(lambda: raw(b'{"seed": [', b"9" * 4299 + b",", MIB, b"1]}"), 400),
    "long fractions": RequestCase(lambda: raw(b'{"seed": [', b"0." + b"1" * 50 + b",", MIB, b"1]}"), 400),
    "many long fractions": RequestCase(lambda: raw(b'{"seed": [', b"0." + b"1" * 50 + b",", 3 * MIB, b"1]}"), 413),
    "a number with many digits": RequestCase(lambda: raw(b'{"temperature": 0.', b"1", 3 * MIB, b"}"), 413),
    "commas": RequestCase(lambda: b"," * (30 * MIB), 413),
    "quotes": RequestCase(lambda: b'"' * (30 * MIB), 413),
    "backslashes": RequestCase(lambda: raw(b'{"input": "', b"\\\\", 30 * MIB, b'"}'), 413),
    "blanks": RequestCase(lambda: b" " * (30 * MIB) + b"{}", 413),
    "many items": RequestCase(
        lambda: b'{"items": [' + b",".join([b'{"input": "x"}'] * 17_000) + b"]}", 400, BATCH
    ),
    "items with long fields": RequestCase(
        lambda: json.dumps({"items": [{"input": "x", "voice": "a" * 900_000}] * 32}).encode(), 200, BATCH
    ),
    # URLs.
    "a long IDN host": RequestCase(lambda: speech(ref_audio=f"http://{'ü' * 8000}.example/a.wav"), 400),
    "an IDN host of many labels": RequestCase(lambda: speech(ref_audio=f"http://{'ü.' * 4000}example/a.wav"), 400),
    "a URL beyond its limit": RequestCase(lambda: speech(ref_audio=f"http://{'ü' * 600_000}.example/a.wav"), 400),
    # Uploads.
    "an upload decoded as idna": upload(400, "idna", ref_text="ü".encode() * 100_000, audio_sample=b"RIFF"),
    "an upload decoded as punycode": upload(400, "punycode", ref_text=b"a" * 200_000, audio_sample=b"RIFF"),
    "an upload in an unknown charset": upload(400, "x-unknown", audio_sample=b"RIFF"),
    "an upload in utf-8": upload(400, "UTF-8", audio_sample=b"RIFF"),
    "an upload of a long embedding": upload(400, speaker_embedding=b"[" + b"1," * 120_000 + b"1]"),
    "an upload of deep lists": upload(400, speaker_embedding=b"[" * 200_000),
    "an upload of long numbers": upload(400, speaker_embedding=b"[" + (b"9" * 4299 + b",") * 60 + b"1]"),
    "an upload with a long name": upload(400, name=b"a" * 250_000, audio_sample=b"RIFF"),
    "an upload of escapes": RequestCase(
        lambda: b"name=" + b"%zz" * 80_000, 400, VOICES, headers={"content-type": "application/x-www-form-urlencoded"}
    ),
    "an import of numbers": RequestCase(lambda: voice_file(b"[" + b"1.5," * 240_000 + b"1]"), 400, f"{VOICES}/import"),
    "an import of lists": RequestCase(lambda: voice_file(b"[" + b"[]," * 320_000 + b"1]"), 400, f"{VOICES}/import"),
    "an upload of line ends": RequestCase(
        lambda: form(audio_sample=b"\r\n--" * (2 * MIB))[1], 400, VOICES, headers=form()[0]
    ),
    "an upload that begins with line ends": RequestCase(
        lambda: b"\r\n" * (4 * MIB) + form()[1], 400, VOICES, headers=form()[0]
    ),
    "an upload with a long header of a part": RequestCase(
        lambda: b'--x\r\nContent-Disposition: form-data; name="name"' + b"; a=b" * 50_000 + b"\r\n\r\nx\r\n--x--\r\n",
        *(400, VOICES), headers=form()[0],
    ),
    "an upload of many parts": RequestCase(
        lambda: b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n' * 100_000 + b"--x--\r\n",
        *(400, VOICES), headers=form()[0],
    ),
    "an upload with a long content type": RequestCase(
        lambda: form()[1], 400, VOICES, headers={"content-type": "multipart/form-data; boundary=x" + "; a=b" * 12_000}
    ),
    "the list of all voices": RequestCase(lambda: b"", 200, VOICES, "GET"),
    "the description of the API": RequestCase(lambda: b"", 200, "/openapi.json", "GET"),
    "a minute of PCM as mp3": RequestCase(
        lambda: bytes(2 * 24_000 * 60), 200, f"{ENCODE}?response_format=mp3", headers={}
    ),
    "ten minutes of PCM as wav": RequestCase(
        lambda: bytes(2 * 24_000 * 600), 200, f"{ENCODE}?response_format=wav", headers={}
    ),
}  # fmt: skip
