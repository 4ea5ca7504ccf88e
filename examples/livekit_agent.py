"""Oscine as the voice of a LiveKit agent, through LiveKit's own plug-in for OpenAI.

pip install livekit-agents livekit-plugins-openai
python livekit_agent.py [http://127.0.0.1:8000]        writes livekit.wav

In an agent, hand the same object to the session: AgentSession(stt=..., llm=..., tts=voice(server)).
"""

import asyncio
import sys
import wave

from livekit.agents import tts
from livekit.plugins import openai


def voice(server: str) -> tts.TTS:
    return openai.TTS(base_url=f"{server}/v1", api_key="none", model="tts-1", voice="alloy", response_format="pcm")


async def main(server: str) -> None:
    speaker = voice(server)
    with wave.open("livekit.wav", "wb") as file:
        file.setparams((1, 2, speaker.sample_rate, 0, "NONE", ""))
        async with speaker.synthesize("Hello there. How are you?") as stream:
            async for audio in stream:  # frames, as they arrive
                file.writeframes(bytes(audio.frame.data))
    await speaker.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"))
