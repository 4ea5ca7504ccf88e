"""Pipecat's OpenAITTSService in a real pipeline: text goes in as frames, sound comes out as frames."""

import asyncio
from itertools import pairwise

from cases import Answer, Case, attempt, cases, tell
from pipecat.frames.frames import (
    ErrorFrame,
    Frame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
)
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.tests.utils import run_test


def _frames(case: Case) -> list[Frame]:
    if not case.get("tokens"):
        return [TTSSpeakFrame(case["text"])]
    # As a language model writes it, a few characters at a time: Pipecat asks for speech sentence by sentence.
    text = case["text"]
    cuts = [*range(0, len(text), 4), len(text)]
    tokens = [LLMTextFrame(text[start:end]) for start, end in pairwise(cuts)]
    return [LLMFullResponseStartFrame(), *tokens, LLMFullResponseEndFrame()]


async def speak(case: Case) -> Answer:
    settings = OpenAITTSService.Settings(**case["fields"])
    service = OpenAITTSService(api_key="any", base_url=case["url"] + "/v1", settings=settings)
    heard, told = await run_test(service, frames_to_send=_frames(case), start_timeout=60)
    sounds = [frame for frame in heard if isinstance(frame, TTSAudioRawFrame)]
    return {
        "audio": b"".join(frame.audio for frame in sounds),
        "rates": sorted({(frame.sample_rate, frame.num_channels) for frame in sounds}),
        "errors": [frame.error for frame in told if isinstance(frame, ErrorFrame)],
    }


async def main() -> None:
    asked = cases()
    # Together: after an error the service waits three seconds for more sound.
    answers = await asyncio.gather(*(attempt(speak, case) for case in asked.values()))
    tell(dict(zip(asked, answers, strict=True)))


if __name__ == "__main__":
    asyncio.run(main())
