"""Finished audio files that a URL of this server names for a short time, for protocols that answer with a URL.

They are in memory, so only the process that made a file can send it. The URL is the only key to its file: it works
without an API key, as such URLs do elsewhere, and nobody can guess it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from dataclasses import dataclass

from fastapi import APIRouter
from fastapi.responses import Response

from oscine.config import ServerConfig
from oscine.errors import NotFoundError
from oscine.server.http.streaming_response import ResponseWriter, StreamingSpeechResponse

FILES_PATH = "/files/"
_TOKEN_BYTES = 32


@dataclass(slots=True, eq=False)
class KeptFile:
    name: str  # in the URL
    key: str  # of the client that it was made for
    data: bytes
    media_type: str
    expires_at: int  # unix seconds
    fetched: bool = False


class KeptFiles:
    """A file is there until it expires. Before that, it only makes room for others if it has been fetched."""

    def __init__(self, config: ServerConfig) -> None:
        self._keep_s = config.kept_files_s
        self._max_bytes, self._max_key_bytes = config.kept_files_bytes, config.kept_files_bytes_per_key
        self._files: dict[str, KeptFile] = {}  # by name, oldest first
        self._bytes: Counter[str] = Counter()  # by key

    def add(self, data: bytes, media_type: str, suffix: str, key: str) -> KeptFile | None:
        """Returns None if there is no room. Called on the event loop, which deletes the file when it expires."""
        if not self._make_room(len(data), key):
            return None
        name = f"{secrets.token_urlsafe(_TOKEN_BYTES)}.{suffix}"
        file = KeptFile(name, key, data, media_type, int(time.time() + self._keep_s))
        self._files[name] = file
        self._bytes[key] += len(data)
        asyncio.get_running_loop().call_later(self._keep_s, self._remove, file)
        return file

    def get(self, name: str) -> KeptFile:
        """Raises 404."""
        if (file := self._files.get(name)) is None:
            message = f"there is no such file; files are kept for {self._keep_s:g} s, by the server that made them"
            raise NotFoundError(f"{message}: request the speech again")
        return file

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return self._bytes.total()

    def _make_room(self, size: int, key: str) -> bool:
        if size > min(self._max_bytes, self._max_key_bytes):
            return False
        for file in [file for file in self._files.values() if file.fetched]:
            if self._fits(size, key):
                break
            if file.key == key or self.size + size > self._max_bytes:
                self._remove(file)
        return self._fits(size, key)

    def _fits(self, size: int, key: str) -> bool:
        return self.size + size <= self._max_bytes and self._bytes[key] + size <= self._max_key_bytes

    def _remove(self, file: KeptFile) -> None:
        if self._files.pop(file.name, None) is None:
            return
        self._bytes[file.key] -= len(file.data)
        if not self._bytes[file.key]:
            del self._bytes[file.key]


def kept_file_routes(files: KeptFiles, stalled_s: float) -> APIRouter:
    router = APIRouter(tags=["speech"])

    @router.get(f"{FILES_PATH}{{name}}", include_in_schema=False)
    async def kept_file(name: str) -> Response:
        file = files.get(name)

        async def produce(writer: ResponseWriter) -> None:
            about = {"content-type": file.media_type, "content-length": str(len(file.data))}
            await writer.start({**about, "cache-control": "private, no-store"})
            await writer.write(file.data, more=False)
            file.fetched = True

        return StreamingSpeechResponse(produce, stalled_s)

    return router
