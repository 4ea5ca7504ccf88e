"""LiveKit's plug-in for Baseten, which streams text to a Qwen3-TTS server: its protocol is that of Oscine's WebSocket.
A reply starts to sound with the first tokens of the language model; the OpenAI plug-in waits for whole sentences.

pip install livekit-agents livekit-plugins-baseten
python livekit_baseten.py [http://127.0.0.1:8000]      writes livekit.wav

In an agent, hand the same object to the session: AgentSession(stt=..., llm=..., tts=voice(server)).
"""

import asyncio
import sys
import wave

import aiohttp
from livekit.agents import tts
from livekit.plugins import baseten


def voice(server: str, http_session: aiohttp.ClientSession | None = None) -> tts.TTS:
    return baseten.TTS(
        model="qwen3-tts",
        model_endpoint=server.replace("http", "ws", 1) + "/v1/audio/speech/stream",
        api_key="none",  # the plug-in needs one; a server without keys ignores it
        voice="alloy",
        task_type="CustomVoice",  # what the checkpoint is; the plug-in's default is Base
        http_session=http_session,  # an agent's session brings its own
    )


async def main(server: str) -> None:
    async with aiohttp.ClientSession() as http_session:
        speaker = voice(server, http_session)
        with wave.open("livekit.wav", "wb") as file:
            file.setparams((1, 2, speaker.sample_rate, 0, "NONE", ""))
            async with speaker.stream() as stream:
                for token in ("Hel", "lo", " there", ". ", "How", " are", " you", "?"):
                    stream.push_text(token)
                stream.end_input()
                async for audio in stream:  # frames, as they arrive
                    file.writeframes(bytes(audio.frame.data))
        await speaker.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"))
