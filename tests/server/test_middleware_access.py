"""Names of the server that requests may use: another site's name is refused, so that its pages cannot read it."""

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from oscine.config import ServerConfig
from oscine.server.app import build_app
from oscine.server.middleware import AllowedHosts
from tests.server.scripted_engine import CARD, ScriptedEngine
from tests.server.serving import serving
from tests.websocket import connect

LOOPBACK = ["localhost", "localhost:8000", "LOCALHOST.", "app.localhost:1", "127.0.0.1:8000", "127.9.9.9", "[::1]:8000"]
ADDRESSES = ["192.168.1.5:8000", "10.0.0.1", "[fe80::1]:80", "[2001:db8::1]"]
LOCAL = ["oscine:8000", "studio.local", "oscine.default.svc.cluster.local:8000", "tts.internal", "box.home.arpa"]
FOREIGN = ["rebind.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example."]


@pytest.mark.parametrize("bind", ["127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "192.168.1.5"])
def test_names_of_other_sites_are_refused_wherever_the_server_listens(bind: str) -> None:
    hosts = AllowedHosts(bind, (), has_keys=False)
    assert all(host in hosts for host in [*LOOPBACK, *ADDRESSES, None, ""])
    assert not any(host in hosts for host in [*FOREIGN, "[evil.example]", "evil.example:1:2", "::evil"])


def test_names_of_a_local_network_are_allowed_if_it_can_reach_the_server() -> None:
    assert all(host in AllowedHosts("0.0.0.0", (), has_keys=False) for host in LOCAL)
    assert not any(host in AllowedHosts("127.0.0.1", (), has_keys=False) for host in LOCAL)


def test_further_names_can_be_allowed() -> None:
    hosts = AllowedHosts("127.0.0.1", ("speech.example.com", "*.example.org"), has_keys=True)
    assert all(host in hosts for host in ["speech.example.com", "Speech.Example.Com:443", "a.example.org", "localhost"])
    assert not any(host in hosts for host in [*FOREIGN, "a.speech.example.com", "example.org", "evilexample.org"])
    assert all(host in AllowedHosts("127.0.0.1", ("*",), has_keys=False) for host in FOREIGN)


def test_a_name_can_be_allowed_on_one_port_only() -> None:
    hosts = AllowedHosts("127.0.0.1", ("speech.example.com:8443", "*.example.org:443"), has_keys=True)
    assert all(host in hosts for host in ["speech.example.com:8443", "a.example.org:443", "a.example.org"])
    assert not any(host in hosts for host in ["speech.example.com", "speech.example.com:9000", "a.example.org:8443"])


def test_a_server_with_keys_allows_any_name_unless_it_is_told_some() -> None:
    assert all(host in AllowedHosts("127.0.0.1", (), has_keys=True) for host in FOREIGN)


def test_a_request_for_another_name_is_refused_over_http_and_websocket(engine: ScriptedEngine) -> None:
    with serving(build_app(engine, CARD, ServerConfig())) as url:
        for path in ("/v1/audio/voices", "/v1/models", "/", "/health", "/openapi.json"):
            answer = httpx.get(url + path, headers={"host": "rebind.example"}, trust_env=False, timeout=600)
            assert answer.status_code == 403 and answer.json()["error"]["code"] == "host_not_allowed"
            assert "'rebind.example'" in answer.json()["error"]["message"]
        body = {"input": "Hello."}
        assert (
            httpx.post(f"{url}/v1/audio/speech", json=body, headers={"host": "rebind.example"}, timeout=600).status_code
            == 403
        )
        assert not engine.requests
        live = url.replace("http://127.0.0.1", "ws://rebind.example") + "/v1/audio/speech/stream"
        where = httpx.URL(url)
        with pytest.raises(InvalidStatus) as refused:
            connect(live, address=(where.host, where.port), proxy=None)
        assert refused.value.response.status_code == 403
