"""Oscine as the voice of a Pipecat pipeline: a language model's tokens go in, audio comes out sentence by sentence.

pip install 'pipecat-ai[openai]'
python pipecat_agent.py [http://127.0.0.1:8000]        writes pipecat.wav
"""

import asyncio
import sys
import wave

from pipecat.frames.frames import (
    EndFrame,
    Frame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineTask
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.tts import OpenAITTSService


class WavWriter(FrameProcessor):
    """Stands for your transport's output: WebRTC, a telephone line, a WebSocket."""

    def __init__(self, file: wave.Wave_write) -> None:
        super().__init__()
        self._file = file

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self._file.writeframes(frame.audio)
        await self.push_frame(frame, direction)


async def main(server: str) -> None:
    # Pipecat's own service for OpenAI; only the address differs.
    tts = OpenAITTSService(
        api_key="none", base_url=f"{server}/v1", settings=OpenAITTSService.Settings(voice="alloy", model="tts-1")
    )
    with wave.open("pipecat.wav", "wb") as file:
        file.setparams((1, 2, 24_000, 0, "NONE", ""))
        task = PipelineTask(Pipeline([tts, WavWriter(file)]))
        # In your pipeline these frames come from a language model service.
        tokens = [LLMTextFrame(token) for token in ("Hello", " there", ". ", "How", " are", " you", "?")]
        await task.queue_frames([LLMFullResponseStartFrame(), *tokens, LLMFullResponseEndFrame(), EndFrame()])
        await PipelineRunner(handle_sigint=False).run(task)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"))
