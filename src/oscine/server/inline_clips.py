"""Clips inside a request: base64, alone or in a data: URL. They are decoded in slices: one call on megabytes would hold
the interpreter lock, and with it the event loop, even from another thread."""

from __future__ import annotations

import binascii
from collections.abc import Iterator
from urllib.parse import unquote_to_bytes

from oscine.errors import TooLargeError, VoiceError

SOURCES = "give the clip as data: URL or base64 (or, if the server allows it, as http:, https: or file: URL, or a path)"

_SLICE_CHARS = 2**18
_MAX_ESCAPES = 2**16  # outside of base64; each takes half a microsecond
_WHITE_SPACE = b" \t\n\r\v\f"
_TO_STANDARD_BASE64 = bytes.maketrans(b"-_", b"+/")
# What clients escape in base64.
_ESCAPES = {b"%2B": b"+", b"%2F": b"/", b"%3D": b"=", b"%0A": b"", b"%0D": b"", b"%20": b""}


def too_large(max_bytes: int, param: str = "ref_audio") -> TooLargeError:
    message = f"the clip exceeds the limit of {max_bytes / 2**20:.3g} MiB; 3 to 20 s of speech are enough"
    return TooLargeError(message, param)


def decode_base64(text: str, max_bytes: int, *, escaped: bool = False) -> bytes:
    """Standard or URL-safe, with or without padding and white space; `escaped`: some characters are percent-encoded.
    Raises VoiceError or TooLargeError."""
    decoded, rest = bytearray(), b""
    try:
        for piece in _slices(text):
            rest += _plain_base64(piece, escaped=escaped)
            whole = max(0, len(rest) // 4 - 1) * 4  # the end may be padding, which `_last` handles
            decoded += binascii.a2b_base64(_without_padding(rest[:whole]), strict_mode=True)
            rest = rest[whole:]
            if len(decoded) > max_bytes:
                raise too_large(max_bytes)
        decoded += _last(rest)
    except TooLargeError:
        raise
    except ValueError as error:
        start = text[:40].encode(errors="backslashreplace").decode() + ("..." if len(text) > 40 else "")
        reason = "it has non-ASCII characters" if isinstance(error, UnicodeError) else error
        raise _invalid(f"ref_audio {start!r} is neither a URL nor base64 ({reason}); {SOURCES}") from None
    if len(decoded) > max_bytes:
        raise too_large(max_bytes)
    if not decoded:
        raise _invalid(f"ref_audio is empty; {SOURCES}")
    return bytes(decoded)


def decode_data_url(url: str, max_bytes: int) -> bytes:
    """Raises VoiceError or TooLargeError."""
    kind, comma, payload = url.strip().partition(",")
    if not comma:
        raise _invalid("ref_audio is a data: URL without a comma; the form is data:audio/wav;base64,…")
    if kind.lower().rstrip().endswith(";base64"):
        return decode_base64(payload, max_bytes, escaped="%" in payload)
    if payload.count("%") > _MAX_ESCAPES:
        raise _invalid(f"ref_audio has more than {_MAX_ESCAPES} percent-encoded bytes; encode the clip as base64")
    try:
        content = b"".join(map(unquote_to_bytes, _slices(payload)))
    except UnicodeEncodeError:
        raise _invalid("ref_audio is a data: URL with half a surrogate pair; encode the clip as base64") from None
    if len(content) > max_bytes:
        raise too_large(max_bytes)
    return content


def _slices(text: str) -> Iterator[str]:
    """Never cuts a percent-encoded character."""
    begin = 0
    while begin < len(text):
        end = begin + _SLICE_CHARS
        if end < len(text) and (cut := text.rfind("%", end - 2, end)) > begin:
            end = cut
        yield text[begin:end]
        begin = end


def _plain_base64(text: str, *, escaped: bool) -> bytes:
    encoded = text.encode("ascii")
    if escaped:
        for escape, character in _ESCAPES.items():
            encoded = encoded.replace(escape, character).replace(escape.lower(), character)
    return encoded.translate(_TO_STANDARD_BASE64, _WHITE_SPACE)


def _without_padding(encoded: bytes) -> bytes:
    if b"=" in encoded:  # of a part that more follows
        raise ValueError("it has data after its padding")
    return encoded


def _last(encoded: bytes) -> bytes:
    encoded = encoded.rstrip(b"=")
    return binascii.a2b_base64(encoded + b"=" * (-len(encoded) % 4), strict_mode=True)


def _invalid(message: str) -> VoiceError:
    return VoiceError(message, "ref_audio")
