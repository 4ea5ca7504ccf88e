"""What Home Assistant does with wyoming-openai, the proxy between its protocol and OpenAI's API.

Reads a URL and texts as JSON from stdin, starts the proxy, and prints what it answered as the last line. Runs in
.venv-clients/wyoming.
"""

import asyncio
import base64
import json
import socket
import sys
from typing import Any

from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.info import Describe, Info
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
    SynthesizeVoice,
)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


async def voices(client: AsyncTcpClient) -> list[str]:
    await client.write_event(Describe().event())
    while event := await client.read_event():
        if Info.is_type(event.type):
            return [voice.name for program in Info.from_event(event).tts for voice in program.voices]
    raise ConnectionError("the proxy closed the connection")


async def received(client: AsyncTcpClient, end: type[AudioStop] | type[SynthesizeStopped]) -> dict[str, Any]:
    audio, rates = b"", set()
    while event := await client.read_event():
        if AudioStart.is_type(event.type):
            rates.add(AudioStart.from_event(event).rate)
        elif AudioChunk.is_type(event.type):
            audio += AudioChunk.from_event(event).audio
        elif Error.is_type(event.type):
            return {"error": Error.from_event(event).text}
        elif end.is_type(event.type):
            return {"audio": base64.b64encode(audio).decode(), "rates": sorted(rates)}
    raise ConnectionError("the proxy closed the connection")


async def whole(client: AsyncTcpClient, text: str, voice: str) -> dict[str, Any]:
    await client.write_event(Synthesize(text=text, voice=SynthesizeVoice(name=voice)).event())
    return await received(client, AudioStop)


async def in_pieces(client: AsyncTcpClient, text: str, voice: str) -> dict[str, Any]:
    """Speaks while a language model writes, as an assistant does."""
    await client.write_event(SynthesizeStart(voice=SynthesizeVoice(name=voice)).event())
    for word in text.split(" "):
        await client.write_event(SynthesizeChunk(text=word + " ").event())
    await client.write_event(SynthesizeStop().event())
    return await received(client, SynthesizeStopped)


async def main() -> None:
    asked = json.load(sys.stdin)
    port = free_port()
    options = ["--uri", f"tcp://127.0.0.1:{port}", "--tts-openai-url", asked["url"] + "/v1", "--tts-openai-key", "any"]
    options += ["--tts-models", "tts-1", "--tts-streaming-models", "tts-1", "--languages", "en"]
    options += ["--tts-backend", "KOKORO_FASTAPI"]  # asks for the list of voices
    proxy = await asyncio.create_subprocess_exec(sys.executable, "-m", "wyoming_openai", *options)
    try:
        client = AsyncTcpClient("127.0.0.1", port)
        while proxy.returncode is None:
            try:
                await client.connect()
                break
            except ConnectionRefusedError:
                await asyncio.sleep(0.05)
        answers: dict[str, Any] = {"voices": await voices(client)}
        for way in (whole, in_pieces):
            answers[way.__name__] = await way(client, asked[way.__name__], asked["voice"])
        await client.disconnect()
    finally:
        proxy.terminate()
        await proxy.wait()
    print("\n" + json.dumps(answers))


asyncio.run(main())
