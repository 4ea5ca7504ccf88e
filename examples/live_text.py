"""A language model's tokens go to the WebSocket as they arrive, the audio to the loudspeaker. Press Enter to interrupt:
the server says which words were played, for the history of the conversation.

pip install websockets sounddevice      (without sounddevice the audio goes to live.pcm: 16 bit, mono, 24 kHz)
python live_text.py [http://127.0.0.1:8000] [SECONDS until the interruption]
"""

import asyncio
import json
import sys
import threading
import time
from collections.abc import AsyncIterator

from websockets.asyncio.client import ClientConnection, connect


async def language_model() -> AsyncIterator[str]:
    """Stands for your model: yields its tokens exactly as they arrive, with their spaces."""
    for token in ("Once upon", " a time", " there was", " a bird.", " It sang", " all day", " and never", " tired."):
        await asyncio.sleep(0.1)
        yield token


class Player:
    """Plays queued PCM and counts what it has played."""

    def __init__(self) -> None:
        self.queue, self.played_bytes = asyncio.Queue[bytes](), 0
        try:
            import sounddevice

            self._out = sounddevice.RawOutputStream(samplerate=24_000, channels=1, dtype="int16").__enter__()
        except (ImportError, OSError):
            self._out = open("live.pcm", "wb", buffering=0)  # noqa: SIM115

    async def run(self, socket: ClientConnection) -> None:
        while pcm := await self.queue.get():
            for start in range(0, len(pcm), 960):  # 20 ms at a time, so that an interruption takes effect at once
                await asyncio.to_thread(self._out.write, pcm[start : start + 960])
                self.played_bytes += 960
        await socket.close()


async def speak(socket: ClientConnection) -> None:
    async for token in language_model():
        await socket.send(json.dumps({"type": "input.text", "text": token}))
    await socket.send(json.dumps({"type": "input.done"}))


async def interrupt(socket: ClientConnection, player: Player, playing: asyncio.Task[None], after_s: float) -> None:
    pressed, loop = asyncio.Event(), asyncio.get_running_loop()
    wait = time.sleep if after_s else lambda _: input()
    threading.Thread(target=lambda: wait(after_s) or loop.call_soon_threadsafe(pressed.set), daemon=True).start()
    await pressed.wait()
    playing.cancel()
    position = {"utterance_index": 0, "played_s": player.played_bytes / 48_000}
    await socket.send(json.dumps({"type": "input.cancel", **position}))


async def main(server: str, after_s: float) -> None:
    async with connect(server.replace("http", "ws", 1) + "/v1/audio/speech/stream") as socket:
        await socket.send(json.dumps({"type": "session.config", "voice": "wren", "response_format": "pcm"}))
        playing = asyncio.create_task((player := Player()).run(socket))
        tasks = [asyncio.create_task(speak(socket))]  # kept: the event loop only holds weak references
        async for message in socket:
            if isinstance(message, bytes):
                player.queue.put_nowait(message)
            elif (event := json.loads(message))["type"] == "audio.start":
                tasks.append(asyncio.create_task(interrupt(socket, player, playing, after_s)))
            elif event["type"] == "session.done" and not playing.cancelled():
                player.queue.put_nowait(b"")  # the end: hangs up when everything is played
            elif event["type"] == "input.cancelled":
                print("interrupted; played were:", event["spoken_text"])
                break


if __name__ == "__main__":
    given = dict(enumerate(sys.argv))
    asyncio.run(main(given.get(1, "http://127.0.0.1:8000"), float(given.get(2, 0))))
