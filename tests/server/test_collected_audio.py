"""Audio that is collected before it is sent has a limit together, silence included, and is given back."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from oscine.config import ServerConfig
from tests.server.entrances import GENERATION, SPEECH, post
from tests.server.live.live_client import Server, server_of
from tests.server.scripted_engine import ScriptedEngine

PAUSE = '<break time="10s"/>'
LONG = f"One. {3 * PAUSE} Two."  # half a minute: 1.4 MiB of WAV
SHORT = f"One. {PAUSE} Two."


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    engine = ScriptedEngine()
    with server_of(engine, ServerConfig(max_collected_bytes=2**20, bytes_per_address=2**21)) as server:
        yield server
    engine.stop()


@pytest.fixture(autouse=True)
def _all_is_given_back(server: Server) -> Iterator[None]:
    yield
    assert len(server.service.ledger["audio"]) == 0


@pytest.mark.parametrize("form", [{"stream": False}, {"stream_format": "json"}])
def test_a_whole_file_beyond_the_limit_is_refused_with_the_way_out(server: Server, form: dict[str, Any]) -> None:
    body = {"input": LONG, "response_format": "wav", **form}
    refused = post(server, SPEECH, body)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
    assert "files of all clients that are not sent yet have 1 MiB" in refused.json()["error"]["message"]
    assert "stream the audio" in refused.json()["error"]["message"]
    assert post(server, SPEECH, {**body, "input": SHORT}).status_code == 200
    assert len(post(server, SPEECH, {**body, "stream": True, "stream_format": "audio"}).content) > 1.4e6


def test_the_answer_of_qwens_cloud_counts_too(server: Server) -> None:
    assert post(server, GENERATION, {"input": {"text": LONG}}).status_code == 429
    assert post(server, GENERATION, {"input": {"text": SHORT}}).status_code == 200


def test_items_of_a_batch_count_together_until_it_is_sent(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oscine.server.api.batch.RETRY_S", 0.0)
    items = [{"input": SHORT}] * 3
    answer = post(server, f"{SPEECH}/batch", {"items": items, "response_format": "wav"}).json()
    assert (answer["succeeded"], answer["failed"]) == (2, 1)
    assert post(server, f"{SPEECH}/batch", {"items": items[:2], "response_format": "wav"}).json()["failed"] == 0


def test_a_file_of_a_websocket_counts_until_it_is_sent(server: Server) -> None:
    with server.client() as client:
        client.configure(response_format="wav", stream_audio=False)
        received = client.say(LONG)
        assert "not sent yet" in received.one("error")["message"]
        assert client.say(SHORT).one("audio.done")["finish_reason"] == "stop"


def test_a_client_that_leaves_gives_back_what_was_collected() -> None:
    engine = ScriptedEngine(frame_s=0.01)
    with server_of(engine, ServerConfig(max_collected_bytes=2**20, bytes_per_address=2**21)) as server:

        async def leave() -> None:
            _, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
            body = b'{"input": "' + b"word " * 60 + b'", "response_format": "wav", "stream": false}'
            head = f"POST {SPEECH} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
            while not len(server.service.ledger["audio"]):
                await asyncio.sleep(0.01)
            writer.close()
            while len(server.service.ledger["audio"]):
                await asyncio.sleep(0.01)

        asyncio.run(leave())
    engine.stop()
