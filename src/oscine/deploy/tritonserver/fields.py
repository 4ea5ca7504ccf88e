"""The inputs of a request as the fields of our HTTP API, so that both mean and refuse the same."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from oscine.deploy.tritonserver.tensors import SPEECH_INPUTS
from oscine.errors import FieldError
from oscine.server.api.schemas import VoiceOptions, invalid_field
from oscine.server.http.json_body import parse_json

_TEXTS = {spec.name for spec in SPEECH_INPUTS if spec.datatype == "STRING"} - {"ref_audio"}


def speech_fields(tensors: Mapping[str, Any]) -> tuple[str, VoiceOptions]:
    """The text and everything else. Raises FieldError. `tensors` holds the inputs that were given."""
    values = {name: _decoded(name, value) if name in _TEXTS else value for name, value in tensors.items()}
    if "text" not in values:
        raise FieldError("text is missing; it is required", param="text")
    if "ref_audio" in values:
        values["ref_audio"] = _clip(values["ref_audio"])
    if "pronunciations" in values:
        values["pronunciations"] = parse_json(values["pronunciations"].encode(), what="input pronunciations")
    text = values.pop("text")
    try:
        return text, VoiceOptions.model_validate(values)
    except ValidationError as error:
        raise invalid_field(list(error.errors())) from None


def _decoded(name: str, value: Any) -> str:
    data = value if isinstance(value, bytes) else str(value).encode(errors="surrogatepass")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FieldError(f"{name} is not UTF-8 text: {error.reason} at byte {error.start}", param=name) from None


def _clip(value: Any) -> str:
    """Text is a URL or base64, as over HTTP. Anything else is the audio file itself: every format has binary data."""
    data = value if isinstance(value, bytes) else str(value).encode()
    if data.isascii() and b"\0" not in data:
        return data.decode()
    return base64.b64encode(data).decode()
