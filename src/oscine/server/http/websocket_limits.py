"""uvicorn's WebSocket protocol with an answer to unreadable handshakes, with limits on the memory of clients that do
not read or never end a message, and a limit on what is parsed at once."""

from __future__ import annotations

from asyncio.transports import BaseTransport
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

from oscine.errors import OverloadedError
from oscine.process.resources import Holding, Owner
from oscine.server.http.connections import OpenConnections, client_network
from oscine.server.http.errors import HeadTooLargeError
from oscine.server.http.http_limits import raw_error

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveEvent, ASGISendEvent

SUBPROTOCOL = "oscine"  # of our own WebSocket
MAX_MESSAGE_BYTES = 4 * 2**20  # room for a reference clip
_SLICE_BYTES = 8 * 2**10  # parsed at once; a frame has at least 6 bytes, and takes some ten microseconds
_MAX_FRAGMENTS = 1024  # of a message; each costs more memory than its bytes
_UNREADABLE = HeadTooLargeError("a WebSocket handshake may have 128 headers of 8 KiB; send settings in messages")


class BoundedWebSocketProtocol(WebSocketsSansIOProtocol):
    _fragments_bytes = 0  # complete fragments of an incomplete message
    _partial_bytes = 0  # of an incomplete frame
    _progressed = False  # the last bytes completed something
    _complete_bytes = 0  # of messages that the application has not handled
    _held: Holding | None = None  # all of these

    @property
    def _connections(self) -> OpenConnections:
        return self.config.app.state.service.connections  # type: ignore[union-attr]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unparsed = bytearray()  # of the last read

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        self._connections.enter(self, self.client[0] if self.client else None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.leave(self)
        if self._held:
            self._held.close()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._unparsed:
            self._unparsed += data
        elif len(data) <= _SLICE_BYTES or not self.handshake_initiated:
            self._parse(data)
        else:
            self._unparsed += data
            self.transport.pause_reading()
            self._parse_slice()

    def _parse_slice(self) -> None:
        """Parses the next slice. One read may have tens of thousands of tiny frames, which would hold the event
        loop."""
        if self.transport.is_closing():
            self._unparsed.clear()
            return
        data = bytes(self._unparsed[:_SLICE_BYTES])
        del self._unparsed[:_SLICE_BYTES]
        self._parse(data)
        if self._unparsed:
            self.loop.call_soon(self._parse_slice)
        elif not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    async def receive(self) -> ASGIReceiveEvent:
        if self.queue.empty():  # the application has handled all
            self._complete_bytes = 0
            self._count_bytes()
        message = await super().receive()  # may resume reading
        if self._unparsed and not self.transport.is_closing():
            self.transport.pause_reading()
        return message

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True  # uvicorn would log that a refused handshake was never answered

    def _parse(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._progressed = False
        super().data_received(data)
        self._partial_bytes = 0 if self._progressed else self._partial_bytes + len(data)
        if not self.handshake_initiated:
            # It was complete for the HTTP parser, so no more of it comes. The library ignores what it cannot read.
            self.transport.write(raw_error(_UNREADABLE))
            self.handshake_complete = self.close_sent = True
            self.transport.close()
        elif len(self.frames) > _MAX_FRAGMENTS:
            self._fail(1008, f"a message may have {_MAX_FRAGMENTS} fragments")
        else:
            self._count_bytes()

    def _count_bytes(self) -> None:
        size = self._complete_bytes + self._fragments_bytes + self._partial_bytes
        if size and self._held is None:
            # The key is not known here. A proxy's header has changed the address by now.
            client = self.scope.get("client")
            network = client_network(client[0] if client else None)
            account = self.config.app.state.service.ledger["request"]  # type: ignore[union-attr]
            self._held = account.open(Owner(f"websockets of {network}", network))
        if self._held:
            try:
                self._held.resize(size)
            except OverloadedError:
                self._fail(1013, "too many large messages of all clients; try again later")

    def _fail(self, code: int, reason: str) -> None:
        self.conn.fail(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.transport.close()

    # --- what the last bytes completed ---

    def handle_connect(self, event: Request) -> None:
        self._progressed = True
        super().handle_connect(event)

    def handle_text(self, event: Frame) -> None:
        self._progressed, self._fragments_bytes = True, len(event.data)
        super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        self._progressed, self._fragments_bytes = True, len(event.data)
        super().handle_bytes(event)

    def handle_cont(self, event: Frame) -> None:
        self._progressed, self._fragments_bytes = True, self._fragments_bytes + len(event.data)
        super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        self._complete_bytes += self._fragments_bytes
        self._fragments_bytes = 0
        super().send_receive_event_to_app()

    def handle_pong(self, event: Frame) -> None:
        self._progressed = True
        super().handle_pong(event)

    def handle_ping(self) -> None:
        self._progressed = True
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()  # drops the answer: answers that nobody reads would fill the memory
