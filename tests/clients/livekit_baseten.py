"""LiveKit's Baseten plugin over the WebSocket, with a timed transcript."""

import asyncio

import aiohttp
from cases import Answer, Case, attempt, cases, report
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT
from livekit.plugins import baseten


async def speak(case: Case) -> Answer:
    async with aiohttp.ClientSession() as session:
        endpoint = {"model_endpoint": case["url"], "api_key": "any", "http_session": session}
        tts = baseten.TTS(model="qwen3-tts", **endpoint, **case["fields"])
        try:
            async with tts.stream() as stream:
                for piece in case["pieces"]:
                    stream.push_text(piece)
                stream.end_input()
                frames = [audio.frame async for audio in stream]
        finally:
            await tts.aclose()
    timed = [word for frame in frames for word in frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, [])]
    return {
        "audio": b"".join(bytes(frame.data) for frame in frames),
        "words": [[str(word), word.start_time, word.end_time] for word in timed],
    }


async def main() -> None:
    report({name: await attempt(speak, case) for name, case in cases().items()})


if __name__ == "__main__":
    asyncio.run(main())
