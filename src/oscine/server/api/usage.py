"""GET /v1/usage: what an API key has used, and what it may use."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from oscine.errors import NotFoundError
from oscine.server.http.api_keys import ApiKeys
from oscine.server.http.key_file import KeyLimits, NamedKey, Role
from oscine.server.http.key_usage import KeyUsage
from oscine.server.http.openapi import described
from oscine.server.http.streaming_response import StreamingSpeechResponse, write_whole
from oscine.server.service import Service


class MinuteAmounts(BaseModel):
    requests: int
    characters: int


class MonthAmounts(MinuteAmounts):
    month: str = Field(description="Of UTC.", examples=["2026-11"])
    audio_seconds: float = Field(description="Of speeches that have ended.")

    @staticmethod
    def of(usage: KeyUsage, key: str, month: str) -> MonthAmounts:
        return MonthAmounts(
            month=month,
            requests=usage.of_month(key, month, "requests"),
            characters=usage.of_month(key, month, "characters"),
            audio_seconds=usage.of_month(key, month, "audio_ms") / 1000,
        )


class UsageOfKey(BaseModel):
    object: Literal["usage"] = "usage"
    key: str = Field(description="Its name; settings:1 is the first key of the settings.")
    roles: list[Role]
    state: Literal["active", "expired", "revoked"]
    expires_at: int | None = Field(description="Unix seconds.")
    limits: KeyLimits = Field(description="null: no limit.")
    streams: int = Field(description="That run now, on this server.")
    last_minute: MinuteAmounts = Field(description="On this server.")
    this_month: MonthAmounts
    next_month_at: int = Field(description="Unix seconds at which the limits of a month begin again.")
    earlier_months: list[MonthAmounts] = Field(description="The newest first.")

    @staticmethod
    def of(keys: ApiKeys, key: NamedKey) -> UsageOfKey:
        usage, name = keys.usage, key.name
        return UsageOfKey(
            key=name,
            roles=list(key.roles),
            state=key.state(usage.clock()),
            expires_at=_unix(key.expires_at),
            limits=key.limits.model_copy(update={"streams": keys.max_streams_of(name)}),
            streams=keys.streams_of(name),
            last_minute=MinuteAmounts(
                requests=usage.of_minute(name, "requests"), characters=usage.of_minute(name, "characters")
            ),
            this_month=MonthAmounts.of(usage, name, usage.month),
            next_month_at=usage.next_month_s,
            earlier_months=[MonthAmounts.of(usage, name, month) for month in usage.earlier_months],
        )


class UsageList(BaseModel):
    object: Literal["list"] = "list"
    data: list[UsageOfKey]


def usage_routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/usage", tags=["about"])
    keys = service.api_keys

    @router.get("", summary="What your key has used", responses=described(401, 404))
    async def own_usage(request: Request) -> UsageOfKey:
        """A speech that failed before its first audio is not counted."""
        if (key := keys.find(request.state.api_key)) is None:
            raise NotFoundError("this server needs no API key, so it counts nothing by key; /metrics has the totals")
        return UsageOfKey.of(keys, key)

    @router.get("/keys", summary="What all keys have used", response_model=UsageList, responses=described(401, 403))
    async def all_usage() -> Response:
        """Needs a key with the role `metrics`."""

        def listed() -> bytes:
            return UsageList(data=[UsageOfKey.of(keys, key) for key in keys.all()]).model_dump_json().encode()

        data = await service.ledger.pool("file").run(listed)
        about, unread = {"content-type": "application/json"}, service.ledger["response"]
        return StreamingSpeechResponse(
            lambda writer: write_whole(writer, data, about, unread), service.config.stalled_s
        )

    return router


def _unix(when: datetime | None) -> int | None:
    return int(when.timestamp()) if when else None
