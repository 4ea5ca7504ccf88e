"""LiveKit's OpenAI plugin: events (SSE) for every model but tts-1 and tts-1-hd, any format inside."""

import asyncio

from cases import Answer, Case, attempt, cases, raised, report
from livekit.agents import APIConnectOptions, APIStatusError
from livekit.plugins import openai

ONCE = APIConnectOptions(max_retry=0, timeout=600)


async def speak(case: Case) -> Answer:
    tts = openai.TTS(base_url=case["url"] + "/v1", api_key="any", **case["fields"])
    metrics: list[Answer] = []
    tts.on("metrics_collected", lambda told: metrics.append(told.model_dump(mode="json")))
    try:
        async with tts.synthesize(case["text"], conn_options=ONCE) as stream:
            spoken = [audio async for audio in stream]
    except APIStatusError as error:
        return raised(error, status=error.status_code, body=error.body)
    finally:
        await tts.aclose()
    return {
        "frames": [bytes(audio.frame.data) for audio in spoken],
        "rates": sorted({(audio.frame.sample_rate, audio.frame.num_channels) for audio in spoken}),
        "request_id": spoken[0].request_id,
        "metrics": metrics,
    }


async def main() -> None:
    report({name: await attempt(speak, case) for name, case in cases().items()})


if __name__ == "__main__":
    asyncio.run(main())
