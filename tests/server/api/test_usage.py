"""GET /v1/usage: what a key has used and may use; all keys for those who may see them."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.server.key_holders import START_S, keyed_server
from tests.server.scripted_engine import CARD, ScriptedEngine
from tests.server.serving import client_of, client_of_app, eventually

DAY_S = 86_400


def test_a_key_sees_its_own_usage_and_limits(engine: ScriptedEngine, tmp_path: Path) -> None:
    server = keyed_server(engine, tmp_path, streams_per_key=5)
    holder = server.holder("acme", "speak", characters_per_month=1000, requests_per_minute=30)
    with client_of_app(server.app) as client:
        body = {"input": "Hello.", "response_format": "pcm"}
        assert client.post("/v1/audio/speech", json=body, headers=holder).status_code == 200
        eventually(lambda: server.keys.usage.spoken["acme", "requests"] == 1)  # after the response
        about = client.get("/v1/usage", headers=holder).json()
        user = client.get("/v1/user/subscription", headers=holder).json()
    assert about == {
        "object": "usage",
        "key": "acme",
        "roles": ["speak"],
        "state": "active",
        "expires_at": None,
        "limits": {
            "streams": 5,
            "requests_per_minute": 30,
            "characters_per_minute": None,
            "requests_per_month": None,
            "characters_per_month": 1000,
        },
        "streams": 0,
        "last_minute": {"requests": 1, "characters": 6},
        "this_month": {"month": "2026-11", "requests": 1, "characters": 6, "audio_seconds": 0.48},
        "next_month_at": START_S + 11.5 * DAY_S,
        "earlier_months": [
            {"month": "2026-10", "requests": 0, "characters": 0, "audio_seconds": 0},
            {"month": "2026-09", "requests": 0, "characters": 0, "audio_seconds": 0},
        ],
    }
    assert (user["character_count"], user["character_limit"]) == (6, 1000)


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/v1/audio/speech", {"stream": True}),
        ("/v1/audio/speech", {"stream_format": "sse"}),
        ("/v1/audio/speech", {"response_format": "wav", "stream": False}),
        ("/v1/audio/speech/batch", {}),
    ],
)
def test_audio_is_that_which_was_sent_whatever_its_speed(
    engine: ScriptedEngine, tmp_path: Path, path: str, form: dict[str, Any]
) -> None:
    server = keyed_server(engine, tmp_path)
    text: dict[str, Any] = {"items": [{"input": "Hello."}]} if path.endswith("batch") else {"input": "Hello."}
    body = {**text, "response_format": "pcm", "speed": 2, **form}
    with client_of_app(server.app) as client:
        holder = {**server.holder("acme", "speak", "metrics"), "x-request-id": "fast"}
        assert client.post(path, json=body, headers=holder).status_code == 200
        eventually(lambda: server.keys.usage.spoken["acme", "requests"] == 1)  # after the response
        sent_s = 6 * 0.08 / 2
        assert client.get("/v1/usage", headers=holder).json()["this_month"]["audio_seconds"] == sent_s
        page = client.get("/metrics", headers=holder).text
        totals = re.findall(r"^oscine_(?:key_)?audio_seconds_total\S+ (\S+)", page, re.MULTILINE)
        assert [float(total) for total in totals] == pytest.approx([sent_s, sent_s])
        if path.endswith("speech"):
            assert client.get("/v1/audio/speech/fast", headers=holder).json()["audio_seconds"] == sent_s


def test_only_keys_that_may_read_metrics_see_all_keys(engine: ScriptedEngine, tmp_path: Path) -> None:
    server = keyed_server(engine, tmp_path, api_keys=("sesame",))
    holder, watcher = server.holder("acme"), server.holder("watcher", "metrics")
    with client_of_app(server.app) as client:
        assert client.get("/v1/usage/keys", headers=holder).status_code == 403
        listed = client.get("/v1/usage/keys", headers=watcher).json()
    assert [one["key"] for one in listed["data"]] == ["settings:1", "acme", "watcher"]
    assert not {"sha256", "prefix"} & listed["data"][1].keys()


@pytest.mark.parametrize("path", ["/v1/usage", "/v1/usage/keys"])
def test_a_server_without_keys_counts_nothing_by_key(engine: ScriptedEngine, path: str) -> None:
    with client_of(engine, CARD) as client:
        answer = client.get(path)
        assert (answer.status_code == 404 and "needs no API key" in answer.text) or answer.json()["data"] == []
