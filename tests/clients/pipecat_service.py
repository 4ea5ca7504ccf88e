"""Pipecat's OpenAITTSService in a real pipeline: text frames in, audio frames out."""

import asyncio
from itertools import pairwise

from cases import Answer, Case, attempt, cases, report
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
    # As from a language model, a few characters at a time; Pipecat requests speech sentence by sentence.
    text = case["text"]
    cuts = [*range(0, len(text), 4), len(text)]
    tokens = [LLMTextFrame(text[start:end]) for start, end in pairwise(cuts)]
    return [LLMFullResponseStartFrame(), *tokens, LLMFullResponseEndFrame()]


async def speak(case: Case) -> Answer:
    settings = OpenAITTSService.Settings(**case["fields"])
    service = OpenAITTSService(api_key="any", base_url=case["url"] + "/v1", settings=settings)
    downstream, upstream = await run_test(service, frames_to_send=_frames(case), start_timeout=600)
    audio = [frame for frame in downstream if isinstance(frame, TTSAudioRawFrame)]
    return {
        "audio": b"".join(frame.audio for frame in audio),
        "rates": sorted({(frame.sample_rate, frame.num_channels) for frame in audio}),
        "errors": [frame.error for frame in upstream if isinstance(frame, ErrorFrame)],
    }


async def main() -> None:
    asked = cases()
    # In parallel: after an error the service waits three seconds for more audio.
    answers = await asyncio.gather(*(attempt(speak, case) for case in asked.values()))
    report(dict(zip(asked, answers, strict=True)))


if __name__ == "__main__":
    asyncio.run(main())
