"""Large bodies are parsed or refused quickly, and errors are not collected a million times."""

import asyncio
import json
import re
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from oscine.errors import TooLargeError
from oscine.server.app import build_app
from oscine.server.http import json_body
from oscine.server.http.json_body import TakenStrings, parse_json, read_json
from oscine.server.schemas import BatchBody, SpeechBody
from tests.conftest import ROOT
from tests.server.scripted_engine import BASE_CARD, ScriptedEngine
from tests.server.serving import client_of

SPEECH = "/v1/audio/speech"
BATCH = "/v1/audio/speech/batch"
MANY = 60_000  # below the limit
MANY_NAMES = 30_000  # the same; a name counts too


def ones(count: int) -> bytes:
    return b",".join([b"1"] * count)


def names(count: int) -> bytes:
    return b",".join(b'"k%07d":1' % number for number in range(count))


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    engine = ScriptedEngine()
    with client_of(engine, BASE_CARD) as client:
        yield client
    engine.stop()


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (BATCH, b'{"items":[' + ones(3 * 2**19) + b"]}", 413),
        (BATCH, b'{"items":[' + ones(MANY) + b"]}", 400),
        (BATCH, b'{"items":[{"input":"a","ref_audio":[' + ones(MANY) + b"]}]}", 200),
        (BATCH, b'{"items":[{"input":"a",' + names(MANY_NAMES) + b"}]}", 200),
        (SPEECH, b'{"input":"a",' + names(3 * 2**17) + b"}", 413),
        (SPEECH, b'{"input":"a",' + names(MANY_NAMES) + b"}", 400),
        (SPEECH, b'{"input":"a","ref_audio":[' + ones(3 * 2**19) + b"]}", 413),
        (SPEECH, b'{"input":"a","ref_audio":[' + ones(MANY) + b"]}", 400),
        (SPEECH, b'{"input":"a","speaker_embedding":[' + ones(MANY) + b"]}", 400),
        (SPEECH, b'{"input":"a","references":[' + ones(MANY) + b"]}", 400),
        (SPEECH, b'{"input":"a","extra_params":{' + names(MANY_NAMES) + b"}}", 400),
        (SPEECH, b'{"input":"a","model":"none","user":[' + ones(MANY) + b"]}", 404),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_body_with_many_wrong_values_costs_little_time(
    client: httpx.Client, path: str, body: bytes, status: int
) -> None:
    start_s = time.process_time()  # the server runs in this process; other load does not count
    answer = client.post(path, content=body, headers={"content-type": "application/json"})
    assert time.process_time() - start_s < 2
    assert answer.status_code == status, answer.text[:300]
    assert len(answer.content) < 2000


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (SpeechBody, dict.fromkeys(map(str, range(1000)), 1)),
        (SpeechBody, {"input": "a", "ref_audio": [1] * 1000}),
        (SpeechBody, {"input": "a", "speaker_embedding": ["a"] * 1000}),
        (SpeechBody, {"input": "a", "references": [1] * 1000}),
        (BatchBody, {"items": [1] * 1000, **dict.fromkeys(map(str, range(1000)), 1)}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_many_wrong_values_give_few_errors(model: type[BaseModel], fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(fields)
    assert caught.value.error_count() <= 2


def test_a_long_text_with_a_large_clip_is_accepted() -> None:
    body = {"input": "One, two, three, and so on. " * 7000, "ref_audio": "data:audio/wav;base64," + "A" * 14_000_000}
    assert asyncio.run(read_json(json.dumps(body).encode(), 15_000_000)) == body


def test_a_body_with_too_many_values_is_refused_with_the_limit() -> None:
    with pytest.raises(TooLargeError) as caught:
        parse_json(b"[" + ones(70_001) + b"]")
    assert "the body has 70001 commas, brackets and strings, the limit is 70000; split the request" in str(caught.value)


def test_a_body_of_long_numbers_is_refused_with_the_limit() -> None:
    parse_json(b"[" + b",".join([b"0.1234567890123456789"] * 69_000) + b"]")
    with pytest.raises(TooLargeError, match="has 3450000 digits, the limit is 1400000; round its numbers"):
        parse_json(b"[" + b",".join([b".".join((b"0", b"1" * 49))] * 69_000) + b"]")


def test_a_string_that_is_too_long_for_a_clip_is_refused_with_the_limit() -> None:
    with pytest.raises(TooLargeError) as caught:
        asyncio.run(read_json(b'{"ref_audio": "' + b"A" * 6_000_000 + b'"}', 2**20))
    assert "a string of 5.72 MiB, the limit for a clip is 1 MiB" in str(caught.value)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.text('a"\\/', min_size=8),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.text('a"\\/', min_size=8), inner),
    max_leaves=20,
)


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(ANY_JSON, st.booleans(), st.booleans())
def test_taking_strings_out_and_putting_them_back_changes_nothing(value: Any, ascii_only: bool, php: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).replace("/", "\\/" if php else "/").encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_body, "LONG_STRING_BYTES", 3)
        patch.setattr(json_body, "SLICE_BYTES", 4)
        taken = TakenStrings()
        rest = asyncio.run(taken.take(body, 10_000))
        assert taken.put_back(json.loads(rest)) == value


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"", {"content-type": "application/json"}),
        (b"{}", {"content-type": "application/json"}),
        (b'{"input": 1}', {"content-type": "application/vnd.api+json; charset=utf-8"}),
        (b'{"input": "x"}', {}),
        (b'{"input": "x"}', {"content-type": "text/plain"}),
        (b"[1]", {"content-type": "application/json"}),
        (b'{"input": ', {"content-type": "application/json"}),
        (b'{"input": "x"}', {"content-type": "application/json", "content-encoding": "gzip"}),
        (b'{"input": "x", "voice": {"id": 1}}', {"content-type": "Application/JSON"}),
    ],
)
def test_a_path_without_the_router_refuses_a_body_in_the_same_words(body: bytes, headers: dict[str, str]) -> None:
    """The router still serves the path below a prefix, as where another application mounts this one."""

    async def answer(root_path: str) -> tuple[int, bytes]:
        app = build_app(ScriptedEngine(), BASE_CARD)
        transport = httpx.ASGITransport(app, root_path=root_path)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            response = await client.post(root_path + SPEECH, content=body, headers=headers)
            return response.status_code, response.content

    direct, routed = asyncio.run(answer("")), asyncio.run(answer("/below"))
    assert direct == routed and direct[0] == 400


def test_the_documentation_has_the_limit_of_values() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    limits = re.findall(r"([\d,]+) (?:values|commas)", page)
    assert len(limits) >= 2 and set(limits) == {f"{json_body.MAX_VALUES:,}"}
    parse_json(b"[" + b"1," * (json_body.MAX_VALUES - 2) + b"1]")
    with pytest.raises(TooLargeError, match=f"the limit is {json_body.MAX_VALUES}"):
        parse_json(b"[" + b"1," * json_body.MAX_VALUES + b"1]")


def test_of_many_large_bodies_one_is_parsed_in_a_round_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have their turn between two of them: a hundred in one round would hold all streams for seconds."""
    rounds: list[int] = []

    async def parse_all() -> None:
        loop, now = asyncio.get_running_loop(), 0

        def count() -> None:
            nonlocal now
            now += 1
            loop.call_soon(count)

        def parse(body: bytes) -> None:
            rounds.append(now)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"[" + ones(MANY) + b"]"}

        monkeypatch.setattr(json_body, "parse_json", parse)
        policy = SimpleNamespace(max_chars=10**6)
        service = SimpleNamespace(large_bodies=asyncio.Lock(), clip_policy=policy)
        scope = {"type": "http", "headers": [], "app": SimpleNamespace(state=SimpleNamespace(service=service))}
        count()
        await asyncio.gather(*(json_body.JsonRequest(scope, receive).json() for _ in range(5)))

    asyncio.run(parse_all())
    assert len(set(rounds)) == len(rounds) == 5
