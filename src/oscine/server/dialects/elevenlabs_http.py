"""ElevenLabs' API over HTTP, as its SDK and plug-ins call it: /v1/text-to-speech/{voice_id} in four forms, and lists of
voices and models. A character's time is its share of the time of its word."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, get_args

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.routing import Match
from starlette.types import Scope

from oscine.align.word_split import TimedWord
from oscine.audio.encoders import FORMATS
from oscine.audio.formats import FormatName
from oscine.errors import FieldError, NotFoundError, RequestError
from oscine.server.api.renderers import Bytes, Call, Json, Renderer, Whole
from oscine.server.api.speech import SpeechHandler
from oscine.server.api.voices import ListedVoice, VoiceList
from oscine.server.http.api_keys import XI_API_KEY, ApiKeys
from oscine.server.http.errors import ApiError, api_error, error_headers, invalid_field
from oscine.server.http.json_body import JsonRoute
from oscine.server.http.logs import request_id
from oscine.server.http.streaming_response import StreamingSpeechResponse, write_whole, write_with_audio
from oscine.server.schemas import SpeechBody
from oscine.server.service import Service
from oscine.speech.events import Audio, Ended, SegmentEnded, SpeechEvent, Started, Words
from oscine.speech.models import ModelRegistry, ServedModel
from oscine.speech.voice_names import language_code

PATH = "/v1/text-to-speech/{voice_id}"
DEFAULT_FORMAT = "mp3_44100_128"
_PATHS = (PATH.partition("{")[0], "/v1/voices", "/v2/voices", "/v1/user")
NO_ALIGNER = "times of characters need an aligner; start the server with --aligner FOLDER"
_MAX_LISTED = 1000  # uploaded voices, where the protocol has no pages

# Settings and codecs of ElevenLabs -> ours.
_NAMES = {"text": "input", "voice_id": "voice", "model_id": "model", "language_code": "language"}
_CODECS: dict[str, FormatName] = {name: name for name in get_args(FormatName)} | {"ulaw": "mulaw"}
_NORMALIZE = {"auto": None, "on": True, "off": False}
# Our codes of errors -> ElevenLabs'.
_CODE_NAMES = {
    "overloaded": "system_busy",
    "too_many_streams": "too_many_concurrent_requests",
    "insufficient_quota": "quota_exceeded",
}


class ElevenLabsSettings(BaseModel):
    """Settings in ElevenLabs' names. Further ones are ours, or are ignored and named in the response."""

    model_config = ConfigDict(extra="allow", strict=True)

    output_format: str = Field(
        DEFAULT_FORMAT, max_length=32, description="A codec, its rate in Hz and its bit rate, which is ignored."
    )
    model_id: str | None = Field(None, description="A served model. Any other name stands for each of them.")
    language_code: str | None = Field(None, max_length=64)
    voice_settings: dict[str, Any] | None = Field(None, description="`speed` counts; the others are ignored.")
    apply_text_normalization: Literal["auto", "on", "off"] | None = Field(
        None, description="on: `text_level` is `spoken`; off: at most `clean`."
    )


class ElevenLabsBody(ElevenLabsSettings):
    text: str


def own_fields(given: Mapping[str, Any], voice: str, models: ModelRegistry) -> dict[str, Any]:
    """ElevenLabs' settings as fields of ours. Those that are not ours keep their names. Raises FieldError."""
    try:
        settings = ElevenLabsSettings.model_validate(given)
    except ValidationError as error:
        raise invalid_field(list(error.errors()), of_request=False) from None
    extra = {name: value for name, value in (settings.model_extra or {}).items() if value is not None}
    fields = {**_format_fields(settings.output_format), **extra, "voice": voice}
    for name, value in (settings.voice_settings or {}).items():
        if value is not None:
            fields.setdefault(name if name == "speed" else f"voice_settings.{name}", value)
    if settings.model_id is not None:
        with contextlib.suppress(NotFoundError):
            models.find(settings.model_id)
            fields.setdefault("model", settings.model_id)
    if settings.language_code is not None:
        fields.setdefault("language", settings.language_code)
    normalize = _NORMALIZE[settings.apply_text_normalization or "auto"]
    return fields if normalize is None else {"normalize": normalize, **fields}


def _format_fields(output_format: str) -> dict[str, Any]:
    codec, _, rest = output_format.partition("_")
    rate = rest.partition("_")[0]
    if codec in _CODECS and (not rest or rate.isdecimal()):
        return {"response_format": _CODECS[codec], **({"sample_rate": int(rate)} if rest else {})}
    message = "output_format must be one of pcm, mp3, opus, ulaw, alaw and wav, and a rate: pcm_24000, mp3_44100_128"
    raise FieldError(message, param="output_format")


def foreign_name(param: str | None) -> str | None:
    """ElevenLabs' name of one of our fields."""
    return next((name for name, own in _NAMES.items() if own == param), param)


def is_elevenlabs(path: str) -> bool:
    return path.startswith(_PATHS)


def refusal(exception: BaseException) -> Response:
    """The response to an error: `detail` as ElevenLabs has it, and `error` as in our other endpoints."""
    error = api_error(exception)
    about = {**error.body, "param": foreign_name(error.param)}
    status, code = error_code(error)
    detail: Any = {"status": code, "code": code, "message": error.message, "type": about["type"]}
    detail |= {"param": about["param"], "request_id": request_id.get()}
    if status == 422:
        path = (about["param"] or "").split(".")
        place = path if path[0] == "query" else ["body", *filter(None, path)]
        detail = [{"type": "value_error", "loc": place, "msg": error.message}]
    return JSONResponse({"detail": detail, "error": about}, status, error_headers(error))


def error_code(error: ApiError) -> tuple[int, str]:
    """Status and code as ElevenLabs has them."""
    if error.code == "invalid_field":
        return 422, "validation_error"
    if error.param == "voice" and error.status in (400, 404):
        return 404, "voice_not_found"
    return error.status, _CODE_NAMES.get(error.code, error.code)


# --- times of characters ----------------------------------------------------------------------------------------------


class Characters(NamedTuple):
    chars: list[str]
    starts_s: list[float]
    ends_s: list[float]

    def extend(self, other: Characters) -> None:
        self.chars.extend(other.chars)
        self.starts_s.extend(other.starts_s)
        self.ends_s.extend(other.ends_s)

    def spread(self, text: str, start_s: float, end_s: float) -> None:
        """Adds a text that is spoken from here to there."""
        step_s = (end_s - start_s) / max(1, len(text))
        self.chars.extend(text)
        self.starts_s.extend(round(start_s + index * step_s, 3) for index in range(len(text)))
        self.ends_s.extend(round(start_s + (index + 1) * step_s, 3) for index in range(len(text)))


class CharacterTimes:
    """Finds the times of all characters of a speech, segment by segment."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}  # of segments whose words are not known yet

    def add(self, event: SegmentEnded | Words) -> Characters | None:
        """Returns the characters of a segment when its words have come, or None before that and if they have no
        times."""
        if isinstance(event, SegmentEnded):
            self._texts[event.index] = event.text
            return None
        text = self._texts.pop(event.index)
        return None if event.warning else _characters(text, event.words)


def _characters(text: str, words: Sequence[TimedWord]) -> Characters:
    found, at, now_s = Characters([], [], []), 0, None
    for word in words:
        begin = text.find(word.word, at)
        if begin < 0 or word.start_s is None or word.end_s is None:
            continue
        found.spread(text[at:begin], word.start_s if now_s is None else now_s, word.start_s)
        found.spread(word.word, word.start_s, word.end_s)
        at, now_s = begin + len(word.word), word.end_s
    found.spread(text[at:], now_s or 0.0, now_s or 0.0)
    return found


def _alignments(found: Characters | None) -> dict[str, Any]:
    """The times of the text as it was written stand for those of the normalized text too."""
    times = found and {
        "characters": found.chars,
        "character_start_times_seconds": found.starts_s,
        "character_end_times_seconds": found.ends_s,
    }
    return {"alignment": times, "normalized_alignment": times}


class TimedFile(Json):
    """The whole file and the times of its characters, in one JSON object."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._times, self._found = CharacterTimes(), Characters([], [], [])

    async def render(self, event: SpeechEvent) -> None:
        if isinstance(event, SegmentEnded | Words) and (found := self._times.add(event)):
            self._found.extend(found)
        await super().render(event)

    async def send(self, data: bytes, words: list[Words], end: Ended) -> None:
        await self.start()
        fields = json.dumps(_alignments(self._found if self._found.chars else None))
        await write_with_audio(self._writer, fields, "audio_base64", data)
        await self._writer.write(b"", more=False)


class TimedStream(Renderer):
    """Lines of JSON: audio as it is generated, and the times of a segment when they are known."""

    media_type = "application/x-ndjson"

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._times = CharacterTimes()

    async def render(self, event: SpeechEvent) -> None:
        await super().render(event)
        match event:
            case Started():
                await self.start()
            case Audio(data=data) if data:
                await self._write_line(data, None)
            case SegmentEnded() | Words():
                if found := self._times.add(event):
                    await self._write_line(b"", found)
            case Ended():
                await self._writer.write(b"", more=False)

    async def _write_line(self, data: bytes, found: Characters | None) -> None:
        line = {"audio_base64": base64.b64encode(data).decode(), **_alignments(found)}
        await self._writer.write(json.dumps(line).encode() + b"\n")


# --- routes -----------------------------------------------------------------------------------------------------------


class ElevenLabsVoice(BaseModel):
    voice_id: str
    name: str
    category: Literal["premade", "cloned"]
    created_at_unix: int
    labels: dict[str, str] = {}
    description: str | None = None
    preview_url: str | None = None
    settings: None = None

    @staticmethod
    def of(listed: ListedVoice) -> ElevenLabsVoice:
        category: Literal["premade", "cloned"] = "premade" if listed.type == "preset" else "cloned"
        return ElevenLabsVoice(
            voice_id=listed.id, name=listed.name, category=category, created_at_unix=listed.created_at
        )


class ElevenLabsVoices(BaseModel):
    voices: list[ElevenLabsVoice]
    has_more: bool
    next_page_token: str | None
    total_count: int


class ElevenLabsError(BaseModel):
    """The body of an error; with 422 `detail` is a list of fields."""

    detail: dict[str, Any] | list[dict[str, Any]]
    error: dict[str, Any] = Field(description="As in our other endpoints.")


class _ModelsRoute(APIRoute):
    """Matches requests of ElevenLabs' clients by the header of their key; for others the path has OpenAI's list."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        is_theirs = any(name == XI_API_KEY.encode() for name, _ in scope["headers"])
        return super().matches(scope) if is_theirs else (Match.NONE, {})


def elevenlabs_routes(service: Service, errors: Mapping[int | str, dict[str, Any]]) -> APIRouter:
    """`errors` describe the statuses for the OpenAPI document."""
    router = APIRouter(tags=["ElevenLabs"], route_class=JsonRoute)
    # FastAPI builds a validator for each status with a `model`: only the last has one, and the others refer to it.
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{ElevenLabsError.__name__}"}}}
    described: dict[int | str, dict[str, Any]] = {
        status: {"description": errors[status]["description"], "content": content}
        for status in (400, 401, 404, 408, 413, 429, 503)
    }
    described[422] = {"description": "A field is wrong.", "model": ElevenLabsError}

    def add(path: str, form: type[Renderer] | None, summary: str, content: str) -> None:
        spoken = {200: {"description": "The speech.", "content": {content: {}}}, **described}
        options: dict[str, Any] = {"methods": ["POST"], "response_class": Response, "responses": spoken}
        router.add_api_route(path, _speech_endpoint(service, form), summary=summary, **options)

    add(PATH, None, "Speak a text, as ElevenLabs does", "audio/mpeg")
    add(f"{PATH}/stream", Bytes, "Stream a text", "audio/mpeg")
    add(f"{PATH}/with-timestamps", TimedFile, "Speak with times of characters", "application/json")
    add(f"{PATH}/stream/with-timestamps", TimedStream, "Stream with times of characters", TimedStream.media_type)

    async def sent(voices: ElevenLabsVoices) -> Response:
        """Encodes a list on a thread, and counts it until it is read."""
        data = await service.ledger.pool("voice_list").run(lambda: voices.model_dump_json().encode())
        about, unread = {"content-type": "application/json"}, service.ledger["response"]
        return StreamingSpeechResponse(
            lambda writer: write_whole(writer, data, about, unread), service.config.stalled_s, refusal
        )

    listing: dict[str, Any] = {"response_model": ElevenLabsVoices, "responses": described}

    @router.get("/v1/voices", summary="All voices, as ElevenLabs lists them", **listing)
    async def all_voices() -> Response:
        return await sent(await _voices(service))

    @router.get("/v2/voices", summary="Voices by page or by name", **listing)
    async def search_voices(
        page_size: Annotated[int, Query(ge=1, le=100, description="Uploaded voices at once.")] = 10,
        next_page_token: str | None = None,
        search: Annotated[str | None, Query(max_length=256)] = None,
    ) -> Response:
        if search is None:
            return await sent(await _voices(service, next_page_token, page_size))
        found = await _voices(service)
        found.voices = [voice for voice in found.voices if search.lower() in voice.name.lower()]
        about = {"has_more": False, "next_page_token": None, "total_count": len(found.voices)}
        return await sent(found.model_copy(update=about))

    @router.get("/v1/voices/{voice_id}", summary="One voice", responses=described)
    async def one_voice(voice_id: str) -> ElevenLabsVoice:
        known = (await _voices(service)).voices
        if found := next((voice for voice in known if voice_id in (voice.voice_id, voice.name)), None):
            return found
        raise NotFoundError(f"there is no voice {voice_id[:80]!r}; GET /v1/voices lists all", "voice")

    @router.get("/v1/user", summary="What clients ask to check their key", responses=described)
    async def user(request: Request) -> dict[str, Any]:
        about = _subscription(service.api_keys, request.state.api_key)
        return {"user_id": "oscine", "is_new_user": False, "subscription": about}

    @router.get("/v1/user/subscription", summary="Characters of this month", responses=described)
    async def subscription(request: Request) -> dict[str, Any]:
        return _subscription(service.api_keys, request.state.api_key)

    async def list_models() -> list[dict[str, Any]]:
        return [_model(model, service.config.max_text_chars) for model in service.models]

    router.add_api_route("/v1/models", list_models, include_in_schema=False, route_class_override=_ModelsRoute)
    return router


def _speech_endpoint(service: Service, form: type[Renderer] | None) -> Callable[..., Awaitable[Response]]:
    """Answers in this form. The default is the bytes as they are generated, or the whole file if it begins with its
    length."""

    async def speak(
        voice_id: str, body: ElevenLabsBody, request: Request, output_format: str = DEFAULT_FORMAT
    ) -> Response:
        given = {**request.query_params, **body.model_dump(exclude_unset=True), "output_format": output_format}
        fields = own_fields(given, voice_id, service.models)
        fields["input"] = fields.pop("text")
        if form in (TimedFile, TimedStream):
            if service.aligner is None:
                raise RequestError(f"{NO_ALIGNER}, or use {PATH}/stream, which has none")
            fields["word_timestamps"] = True
        try:
            speech = SpeechBody.model_validate(fields)
        except ValidationError as error:
            raise invalid_field(list(error.errors())) from None
        chosen = form or (Whole if FORMATS[speech.response_format or "mp3"].needs_length else Bytes)
        handler = SpeechHandler(Call(speech, service, request.state.api_key), chosen)
        return StreamingSpeechResponse(handler.produce, service.config.stalled_s, refusal)

    return speak


async def _voices(service: Service, after: str | None = None, limit: int = _MAX_LISTED) -> ElevenLabsVoices:
    models = [model for model in service.models if not model.removing]
    presets = {speaker for model in models for speaker in model.card.speakers}
    store = service.voice_store

    def listed() -> ElevenLabsVoices:
        page = store.page(after, limit)
        known = VoiceList.of(models, page, objects=False, first=not after).data
        return ElevenLabsVoices(
            voices=[ElevenLabsVoice.of(voice) for voice in known],
            has_more=page.has_more,
            next_page_token=page.voices[-1].id if page.has_more and page.voices else None,
            total_count=len(presets) + len(store.names()),
        )

    return await service.ledger.pool("voice_list").run(listed)


def _subscription(keys: ApiKeys, key: str) -> dict[str, Any]:
    """A missing limit is the largest number that all clients read."""
    return {
        "tier": "self-hosted",
        "status": "active",
        "character_count": keys.usage.of_month(key, keys.usage.month, "characters"),
        "character_limit": keys.limits_of(key).characters_per_month or 2**31 - 1,
        "next_character_count_reset_unix": keys.usage.next_month_s,
    }


def _model(model: ServedModel, max_text_chars: int) -> dict[str, Any]:
    languages = [{"language_id": language_code(name), "name": name.title()} for name in model.card.languages]
    about = {"model_id": model.name, "name": model.name, "can_do_text_to_speech": True, "languages": languages}
    return {**about, "maximum_text_length_per_request": max_text_chars}
