"""A phone call with Oscine: a bridge between a Twilio Media Stream and the WebSocket. When the caller begins to talk,
the voice stops at once, and the bridge knows which words were heard, for the history of the conversation.

pip install websockets
python twilio_bridge.py [http://127.0.0.1:8000] [PORT]

Twilio calls it with this TwiML:  <Response><Connect><Stream url="wss://bridge.example.com/" /></Connect></Response>
(TLS comes from a proxy or a tunnel in front of it.)
"""

import asyncio
import base64
import contextlib
import json
import sys
from collections.abc import AsyncIterator

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, WebSocketException

PACKET_MS = 20  # as in a phone network: 160 bytes of mu-law
MARK_PACKETS = 5  # Twilio says how far it has played every 100 ms
LOUD_PACKETS = 5  # 100 ms of a loud caller are an interruption
QUIET_PACKETS = 25  # half a second of silence ends the caller's turn


async def answers() -> AsyncIterator[str]:
    """Stands for your model, which would listen to the caller's words and stream its own."""
    for token in (
        "Welcome",
        " to the",
        " station.",
        " The next",
        " train",
        " leaves",
        " at noon",
        " from track",
        " two.",
    ):
        await asyncio.sleep(0.05)
        yield token


def is_loud(mulaw: bytes) -> bool:
    """Mu-law bytes are inverted; their bits 4 to 6 are the logarithm of the level. Use a real detector of voices."""
    return sum((~byte & 0x70) >> 4 > 3 for byte in mulaw) > len(mulaw) / 4


class Call:
    def __init__(self, twilio: ServerConnection, oscine: ClientConnection, stream_sid: str) -> None:
        self._twilio, self._oscine, self._sid = twilio, oscine, stream_sid
        self._turn, self._packets = -1, 0  # the utterance that is spoken, and its packets so far
        self._played_s = 0.0
        self._speaking = False  # until the caller has heard the end
        self._loud = self._quiet = 0  # packets of the caller
        self._writing: asyncio.Task[None] | None = None

    async def speak(self) -> None:
        async for token in answers():
            await self._oscine.send(json.dumps({"type": "input.text", "text": token}))
        await self._oscine.send(json.dumps({"type": "input.done"}))

    def take_turn(self) -> None:
        self._turn, self._packets, self._played_s, self._speaking = self._turn + 1, 0, 0.0, True
        self._writing = asyncio.create_task(self.speak())

    async def forward_speech(self) -> None:
        """Oscine's packets go to Twilio as they are, each fifth with a mark that comes back when it was played."""
        async for message in self._oscine:
            if isinstance(message, bytes):
                await self._send("media", media={"payload": base64.b64encode(message).decode()})
                self._packets += 1
                if self._packets % MARK_PACKETS == 0:
                    await self._mark(str(self._packets))
                continue
            event = json.loads(message)
            if event["type"] == "session.done" and self._speaking:
                await self._mark("end")
            elif event["type"] == "input.cancelled":
                print(f"interrupted; the caller heard: {event['spoken_text']!r}", flush=True)
            elif event["type"] == "error":
                print(f"the server refuses: {event['message']}", file=sys.stderr, flush=True)

    async def hear(self, event: dict) -> None:
        if event["event"] == "mark":
            turn, _, name = event["mark"]["name"].partition(":")
            if not self._speaking or int(turn) != self._turn:
                return  # Twilio also returns the marks of audio that it has dropped
            if name == "end":
                self._speaking = False
                print("the caller heard everything", flush=True)
            else:
                self._played_s = int(name) * PACKET_MS / 1000
        elif event["event"] == "media":
            loud = is_loud(base64.b64decode(event["media"]["payload"]))
            self._loud, self._quiet = (self._loud + 1, 0) if loud else (0, self._quiet + 1)
            if self._speaking and self._loud == LOUD_PACKETS:
                await self.interrupt()
            elif not self._speaking and self._quiet == QUIET_PACKETS:
                self.take_turn()

    async def interrupt(self) -> None:
        self._speaking = False
        if self._writing:
            self._writing.cancel()
        await self._send("clear")
        played = {"utterance_index": self._turn, "played_s": self._played_s}
        await self._oscine.send(json.dumps({"type": "input.cancel", **played}))

    async def _mark(self, name: str) -> None:
        await self._send("mark", mark={"name": f"{self._turn}:{name}"})

    async def _send(self, event: str, **fields: object) -> None:
        await self._twilio.send(json.dumps({"event": event, "streamSid": self._sid, **fields}))


async def handle(twilio: ServerConnection, server: str) -> None:
    async for message in twilio:
        event = json.loads(message)
        if event["event"] == "start":
            break
    else:
        return
    async with connect(server.replace("http", "ws", 1) + "/v1/audio/speech/stream") as oscine:
        config = {"voice": "wren", "response_format": "mulaw", "packet_ms": PACKET_MS}
        await oscine.send(json.dumps({"type": "session.config", **config}))
        call = Call(twilio, oscine, event["start"]["streamSid"])
        call.take_turn()
        forwarding = asyncio.create_task(call.forward_speech())
        with contextlib.suppress(ConnectionClosed):
            async for message in twilio:
                if (event := json.loads(message))["event"] == "stop":
                    break
                await call.hear(event)
        forwarding.cancel()


async def main(server: str, port: int) -> None:
    async def answer(twilio: ServerConnection) -> None:
        try:
            await handle(twilio, server)
        except (OSError, WebSocketException) as error:
            print(f"no speech from {server}: {error}. Is a server running there?", file=sys.stderr, flush=True)

    async with serve(answer, "127.0.0.1", port) as bridge:
        print(f"waiting for calls on port {next(iter(bridge.sockets)).getsockname()[1]}", flush=True)
        await bridge.serve_forever()


if __name__ == "__main__":
    given = dict(enumerate(sys.argv))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(given.get(1, "http://127.0.0.1:8000"), int(given.get(2, 5050))))
