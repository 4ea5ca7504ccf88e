"""Finished audio files that a URL of this server names for a short time, for protocols that answer with a URL.

They are in memory, so only the process that made a file can send it. The URL is the only key to its file: it works
without an API key, as such URLs do elsewhere, and nobody can guess it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass

from fastapi import APIRouter
from fastapi.responses import Response

from oscine.errors import NotFoundError
from oscine.process.resources import Account, Owner, current_owner
from oscine.server.http.openapi import described
from oscine.server.http.streaming_response import ResponseWriter, StreamingSpeechResponse

FILES_PATH = "/files/"
_TOKEN_BYTES = 32


@dataclass(slots=True, eq=False)
class KeptFile:
    name: str  # in the URL
    owner: Owner  # the client that it was made for
    data: bytes
    media_type: str
    expires_at: int  # unix seconds
    fetched: bool = False


class KeptFiles:
    """A file is there until it expires. Before that, it makes room if it has been fetched, or else for newer files of
    the same key, oldest first and those of the same address before others."""

    def __init__(self, account: Account, keep_s: float) -> None:
        self._account, self._keep_s = account, keep_s
        self._files: dict[str, KeptFile] = {}  # by name, oldest first

    def add(self, data: bytes, media_type: str, suffix: str) -> KeptFile | None:
        """Returns None for a file that would not fit even alone. Raises OverloadedError if files of others take the
        room. Called on the event loop, which deletes the file when it expires."""
        owner, limit = current_owner.get(), self._account.limit
        if any(most is not None and len(data) > most for most in (limit.in_all, limit.per_key, limit.per_address)):
            return None
        self._make_room(len(data), owner)
        self._account.change(owner, len(data))
        name = f"{secrets.token_urlsafe(_TOKEN_BYTES)}.{suffix}"
        file = KeptFile(name, owner, data, media_type, int(time.time() + self._keep_s))
        self._files[name] = file
        asyncio.get_running_loop().call_later(self._keep_s, self._remove, file)
        return file

    def get(self, name: str) -> KeptFile:
        """Returns the file of this name. Raises NotFoundError."""
        if (file := self._files.get(name)) is None:
            message = f"there is no such file; files are kept for {self._keep_s:g} s, by the server that made them"
            raise NotFoundError(f"{message}: request the speech again")
        return file

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return len(self._account)

    def _make_room(self, size: int, owner: Owner) -> None:
        for file in sorted(self._files.values(), key=lambda file: (not file.fetched, file.owner != owner)):
            if self._account.has_room(owner, size):
                return
            if file.owner.key == owner.key or (file.fetched and self.size + size > self._account.limit.in_all):
                self._remove(file)

    def _remove(self, file: KeptFile) -> None:
        if self._files.pop(file.name, None) is None:
            return
        self._account.change(file.owner, -len(file.data))


def kept_file_routes(files: KeptFiles, stalled_s: float) -> APIRouter:
    router = APIRouter(tags=["speech"])

    @router.get(
        f"{FILES_PATH}{{name}}",
        response_class=Response,
        responses={200: {"description": "The file.", "content": {"audio/*": {}}}, **described(404)},
        openapi_extra={"security": []},
        summary="A finished file",
    )
    async def kept_file(name: str) -> Response:
        """The file that an answer of DashScope's protocol names in its URL, which is the only key to it."""
        file = files.get(name)

        async def produce(writer: ResponseWriter) -> None:
            about = {"content-type": file.media_type, "content-length": str(len(file.data))}
            await writer.start({**about, "cache-control": "private, no-store"})
            await writer.write(file.data, more=False)
            file.fetched = True

        return StreamingSpeechResponse(produce, stalled_s)

    return router
