"""GET /v1/usage: what a key has used and may use; all keys for those who may see them."""

from pathlib import Path

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
