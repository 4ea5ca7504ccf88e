"""Pages and descriptions come from memory, and again only if they have changed."""

import httpx
import pytest

from tests.server.scripted_engine import CARD, ScriptedEngine
from tests.server.serving import client_of


def test_the_document_is_sent_once_and_compressed(engine: ScriptedEngine) -> None:
    with client_of(engine, CARD) as client:
        for path in ("/openapi.json", "/asyncapi.json"):
            plain = client.get(path, headers={"accept-encoding": "identity"})
            small = client.get(path, headers={"accept-encoding": "br, gzip;q=0.8"})
            assert plain.json() == small.json() and small.headers["content-encoding"] == "gzip"
            assert 3 * int(small.headers["content-length"]) < int(plain.headers["content-length"])
            assert "content-encoding" not in client.get(path, headers={"accept-encoding": "gzip;q=0"}).headers
            tag = plain.headers["etag"]
            assert tag == small.headers["etag"] and plain.headers["vary"] == "accept-encoding"
            for known in (tag, f'"other", {tag}', tag.removeprefix("W/"), "*"):
                again = client.get(path, headers={"if-none-match": known})
                assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
            assert client.get(path, headers={"if-none-match": '"other"'}).status_code == 200
            head = client.head(path, headers={"accept-encoding": "gzip"})
            assert head.headers["content-length"] == small.headers["content-length"]


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/docs", "text/html; charset=utf-8"),
        ("/playground/app.js", "text/javascript; charset=utf-8"),
        ("/playground/style.css", "text/css; charset=utf-8"),
        ("/playground/icon.svg", "image/svg+xml"),
    ],
)
def test_pages_have_their_media_type_and_a_tag(engine: ScriptedEngine, path: str, media_type: str) -> None:
    with client_of(engine, CARD) as client:
        page = client.get(path)
        assert page.status_code == 200 and page.headers["content-type"] == media_type and page.content
        assert client.get(path, headers={"if-none-match": page.headers["etag"]}).status_code == 304


@pytest.mark.parametrize("path", ["/playground/none.js", "/playground/../app.py", "/playground/%2e%2e%2fapp.py"])
def test_only_files_of_the_folder_are_served(engine: ScriptedEngine, path: str) -> None:
    with client_of(engine, CARD) as client:
        assert client.get(httpx.URL(client.base_url.join(path))).status_code == 404
