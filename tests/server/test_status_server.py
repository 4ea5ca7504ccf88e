"""The port for the state of one process."""

import contextlib
from collections.abc import Iterator

import httpx
import pytest

from oscine.config import ServerConfig
from oscine.errors import ConfigError
from oscine.server.app import build_app
from oscine.server.service import Service
from oscine.server.status_server import StatusServer
from tests.server.scripted_engine import CARD, ScriptedEngine

PORTS = [0]  # any free one


@pytest.fixture
def service(engine: ScriptedEngine) -> Iterator[Service]:
    service: Service = build_app(engine, CARD, ServerConfig(api_keys=("sesame",))).state.service
    yield service
    service.close()


def get(server: StatusServer, path: str, key: str | None = None) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.get(f"http://127.0.0.1:{server.port}{path}", headers=headers, trust_env=False)


def test_it_shows_the_state_to_those_with_a_key_and_nothing_else(service: Service) -> None:
    with contextlib.closing(StatusServer(service, "127.0.0.1", PORTS)) as server:
        assert "oscine_slots_active" in get(server, "/metrics", "sesame").text
        assert get(server, "/metrics").json()["error"]["code"] == "invalid_api_key"
        assert get(server, "/ready").json()["ready"]
        assert get(server, "/health").status_code == get(server, "/version").status_code == 200
        assert get(server, "/v1/audio/speech", "sesame").json()["error"]["code"] == "not_found"


def test_the_next_port_is_taken_if_one_is_not_free(service: Service) -> None:
    with contextlib.closing(StatusServer(service, "127.0.0.1", PORTS)) as first:
        with contextlib.closing(StatusServer(service, "127.0.0.1", [first.port, 0])) as second:
            assert second.port != first.port
            assert get(second, "/health").status_code == 200
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{first.port}"):
            StatusServer(service, "127.0.0.1", [first.port])
    with pytest.raises(httpx.ConnectError):
        get(first, "/health")
