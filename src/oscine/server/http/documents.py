"""Documents that never change while the server runs: pages and descriptions, from memory, with a tag."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from oscine.errors import NotFoundError
from oscine.process.resources import WorkPool

_MEDIA_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


class Document:
    def __init__(self, content: bytes, media_type: str, *, compressed: bool = False) -> None:
        """`compressed`: where the client takes gzip."""
        self._plain, self._media_type = content, media_type
        self._gzip = gzip.compress(content, mtime=0) if compressed else None
        # A weak tag, because the compressed bytes differ.
        self._tag = f'W/"{hashlib.sha256(content).hexdigest()[:32]}"'

    @staticmethod
    def of_json(content: Any) -> Document:
        encoded = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
        return Document(encoded, "application/json", compressed=True)

    def response(self, request: Request) -> Response:
        headers = {"etag": self._tag, "vary": "accept-encoding", "cache-control": "no-cache"}
        known = {tag.strip() for tag in request.headers.get("if-none-match", "").split(",")}
        if known & {self._tag, self._tag.removeprefix("W/"), "*"}:
            return Response(status_code=304, headers=headers)
        if self._gzip is None or not _takes_gzip(request.headers.get("accept-encoding", "")):
            return Response(self._plain, media_type=self._media_type, headers=headers)
        return Response(self._gzip, media_type=self._media_type, headers={**headers, "content-encoding": "gzip"})


def add_described(app: FastAPI, path: str, describe: Callable[[], Any], pool: WorkPool) -> None:
    """Serves what `describe` returns as JSON. It is made once, at the first request, on a thread: it takes a tenth of a
    second."""
    made: list[Document] = []
    making = asyncio.Lock()

    async def document(request: Request) -> Response:
        async with making:
            if not made:
                made.append(await pool.run(lambda: Document.of_json(describe())))
        return made[0].response(request)

    app.add_api_route(path, document, include_in_schema=False)


def add_files(app: FastAPI, path: str, folder: Path, pages: dict[str, str]) -> None:
    """Serves the files of a folder below `path`, and `pages`: paths and their files."""
    kinds = sorted(file for file in folder.iterdir() if file.suffix in _MEDIA_TYPES)
    files = {file.name: Document(file.read_bytes(), _MEDIA_TYPES[file.suffix]) for file in kinds}

    async def file(name: str, request: Request) -> Response:
        if name not in files:
            raise NotFoundError(f"there is no file {name[:80]!r} below {path}")
        return files[name].response(request)

    app.add_api_route(f"{path}/{{name}}", file, include_in_schema=False)
    for at, name in pages.items():
        _add_page(app, at, files[name])


def _add_page(app: FastAPI, path: str, document: Document) -> None:
    async def page(request: Request) -> Response:
        return document.response(request)

    app.add_api_route(path, page, include_in_schema=False)


def _takes_gzip(accepted: str) -> bool:
    for item in accepted.lower().split(","):
        name, _, quality = item.partition(";")
        if name.strip() == "gzip":
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
