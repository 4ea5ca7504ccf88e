"""Which form the response of POST /v1/audio/speech has. Servers of this API differ, and so do their clients.

| the request has                                         | form                                                       |
|---------------------------------------------------------|------------------------------------------------------------|
| `stream_format`                                         | `audio`: bytes; `sse`: events; `json`: a JSON object       |
| `stream: false`                                         | the whole file                                             |
| an `Accept` that prefers text/event-stream to audio     | events                                                     |
| `stream: true`, and an `Accept` that prefers audio      | bytes                                                      |
| `stream: true`                                          | bytes; events if the server is set so                      |
| none of these, and `word_timestamps`                    | the whole file                                             |
| none of these, and the format is WAV or FLAC            | the whole file; bytes for a client that says that it reads |
|                                                         | the response as it arrives, for a very long text, or if    |
|                                                         | the server is set so                                       |
| none of these                                           | bytes                                                      |

`stream_format` goes before `Accept`: OpenAI's SDK accepts application/octet-stream even where it asks for events.
WAV and FLAC files begin with their length. Sent before it is known, it is a placeholder, which many readers refuse or
take for a day of audio.
"""

from __future__ import annotations

import re
from typing import Literal

from starlette.datastructures import Headers

from oscine.audio.encoders import FORMATS
from oscine.config import ServerConfig
from oscine.server.api.schemas import SpeechBody

ResponseForm = Literal["bytes", "events", "whole", "json"]
_FORMATS: dict[str, ResponseForm] = {"audio": "bytes", "sse": "events", "json": "json"}

_MAX_WHOLE_CHARS = 20_000  # some twenty minutes, or 55 MiB, which the server holds until they are complete
_QUALITY = re.compile(r";\s*q\s*=\s*([01](?:\.\d{0,3})?)\s*(?:;|$)")


def response_form(body: SpeechBody, headers: Headers, config: ServerConfig) -> ResponseForm:
    if body.stream_format is not None:
        return _FORMATS[body.stream_format]
    if body.stream is False:
        return "whole"
    accepted = _preferred(",".join(headers.getlist("accept")))
    if accepted == "events":
        return "events"
    if body.stream:
        return "events" if config.stream_events and accepted is None else "bytes"
    if body.word_timestamps:  # in a header, which is sent before the audio
        return "whole"
    needs_length = FORMATS[body.response_format or config.http_format].needs_length
    streams = config.stream_wav or _reads_a_stream(headers) or len(body.input) > _MAX_WHOLE_CHARS
    return "whole" if needs_length and not streams else "bytes"


def _reads_a_stream(headers: Headers) -> bool:
    # OpenAI's SDK in Python says so for `with_streaming_response`.
    return headers.get("x-stainless-raw-response") == "stream"


def _preferred(accept: str) -> Literal["bytes", "events"] | None:
    """Returns None if the client has not said; `*/*` accepts both."""
    quality = {"bytes": 0.0, "events": 0.0}
    for item in accept.lower().split(","):
        kind = item.partition(";")[0].strip()
        given = _QUALITY.search(item)
        value = float(given[1]) if given else 1.0
        if kind == "text/event-stream":
            quality["events"] = max(quality["events"], value)
        elif kind.startswith("audio/") or kind == "application/octet-stream":
            quality["bytes"] = max(quality["bytes"], value)
    if quality["bytes"] == quality["events"]:
        return None
    return "events" if quality["events"] > quality["bytes"] else "bytes"
