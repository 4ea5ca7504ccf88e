"""Oscine as the last step of a LangChain chain: prompt | model | text | speech. The model's tokens go to the WebSocket
as they arrive, and the chain streams audio.

pip install langchain-core websockets
python langchain_voice.py [http://127.0.0.1:8000]      writes langchain.wav
"""

import asyncio
import json
import sys
import time
import wave
from collections.abc import AsyncIterator

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableGenerator
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

# Stands for your model, for example ChatOpenAI(...): it streams its answer word by word.
MODEL = GenericFakeChatModel(messages=iter([AIMessage("Birds sing to be heard. They start before dawn.")]))


def speech(server: str, voice: str = "alloy") -> Runnable[str, bytes]:
    """A step that takes text and yields PCM (16 bit, mono, 24 kHz), both in pieces of any size."""

    async def send(socket: ClientConnection, text: AsyncIterator[str]) -> None:
        async for piece in text:
            await socket.send(json.dumps({"type": "input.text", "text": piece}))
        await socket.send(json.dumps({"type": "session.close"}))  # speak the rest, then close

    async def speak(text: AsyncIterator[str]) -> AsyncIterator[bytes]:
        async with connect(server.replace("http", "ws", 1) + "/v1/audio/speech/stream") as socket:
            await socket.send(json.dumps({"type": "session.config", "voice": voice, "response_format": "pcm"}))
            sending = asyncio.create_task(send(socket, text))
            async for message in socket:
                if isinstance(message, bytes):
                    yield message
                elif (event := json.loads(message))["type"] == "error":
                    raise RuntimeError(event["message"])
            await sending

    return RunnableGenerator(speak)


async def main(server: str) -> None:
    prompt = ChatPromptTemplate.from_messages([("system", "Answer in two sentences."), ("user", "{question}")])
    chain = prompt | MODEL | StrOutputParser() | speech(server)
    begun_s = time.perf_counter()
    with wave.open("langchain.wav", "wb") as file:
        file.setparams((1, 2, 24_000, 0, "NONE", ""))
        async for pcm in chain.astream({"question": "Why do birds sing?"}):
            if not file.tell():
                print(f"first audio after {time.perf_counter() - begun_s:.2f} s")
            file.writeframes(pcm)
        print(f"langchain.wav: {file.tell() / 24_000:.1f} s")


if __name__ == "__main__":
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    try:
        asyncio.run(main(url))
    except (OSError, WebSocketException) as error:
        sys.exit(f"no speech from {url}: {error}. Is a server running there?")
