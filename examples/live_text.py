"""A language model's tokens go to the WebSocket as they arrive, the audio to the loudspeaker. Press Enter to interrupt:
the server says which words were played, for the history of the conversation.

pip install websockets sounddevice      (without sounddevice the audio goes to live.wav, at the speed of playback)
python live_text.py [http://127.0.0.1:8000] [SECONDS until the interruption]
"""

import asyncio
import json
import sys
import threading
import time
import wave

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

# Stands for your model, whose tokens are sent exactly as they arrive, with their spaces.
TOKENS = ("Once upon", " a time", " there was", " a bird.", " It sang", " all day", " and never", " tired.")


class Player:
    """Plays queued PCM and counts what it has played."""

    def __init__(self) -> None:
        self.queue, self.played_s = asyncio.Queue[bytes](), 0.0
        try:
            import sounddevice

            self._play = sounddevice.RawOutputStream(samplerate=24_000, channels=1, dtype="int16").__enter__().write
        except (ImportError, OSError) as error:
            print(f"no loudspeaker ({error}): the audio goes to live.wav")
            self._file = wave.open("live.wav", "wb")  # noqa: SIM115
            self._file.setparams((1, 2, 24_000, 0, "NONE", ""))
            self._play = lambda pcm: self._file.writeframes(pcm) or time.sleep(len(pcm) / 48_000)

    async def run(self, socket: ClientConnection) -> None:
        while pcm := await self.queue.get():
            for start in range(0, len(pcm), 960):  # 20 ms at a time, so that an interruption takes effect at once
                await asyncio.to_thread(self._play, pcm[start : start + 960])
                self.played_s += 0.02
        print(f"\nplayed to the end: {self.played_s:.1f} s")
        await socket.close()


async def speak(socket: ClientConnection) -> None:
    for token in TOKENS:
        await asyncio.sleep(0.1)
        print(token, end="", flush=True)
        await socket.send(json.dumps({"type": "input.text", "text": token}))
    await socket.send(json.dumps({"type": "input.done"}))


async def interrupt(socket: ClientConnection, player: Player, playing: asyncio.Task[None], after_s: float) -> None:
    pressed, loop = asyncio.Event(), asyncio.get_running_loop()
    wait = (lambda: time.sleep(after_s) or True) if after_s else sys.stdin.readline  # "": there is no keyboard
    threading.Thread(target=lambda: wait() and loop.call_soon_threadsafe(pressed.set), daemon=True).start()
    await pressed.wait()
    playing.cancel()
    await socket.send(json.dumps({"type": "input.cancel", "utterance_index": 0, "played_s": player.played_s}))


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
                print("\ninterrupted; played were:", event["spoken_text"])
                break
            elif event["type"] == "error":
                sys.exit(f"\nthe server refuses: {event['message']}")


if __name__ == "__main__":
    given = dict(enumerate(sys.argv))
    url = given.get(1, "http://127.0.0.1:8000")
    try:
        asyncio.run(main(url, float(given.get(2, 0))))
    except (OSError, WebSocketException) as error:
        sys.exit(f"no speech from {url}: {error}. Is a server running there?")
