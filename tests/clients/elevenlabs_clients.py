"""Clients of ElevenLabs: its SDK, LiveKit's plug-in and Pipecat's services. `how` names one of the functions below."""

import asyncio
from typing import Any

import aiohttp
from cases import Answer, Case, attempt, cases, raised, report
from elevenlabs import VoiceSettings
from elevenlabs.client import ElevenLabs
from elevenlabs.core.api_error import ApiError
from livekit.agents import APIConnectOptions
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT
from livekit.plugins import elevenlabs
from pipecat.frames.frames import ErrorFrame, TTSAudioRawFrame, TTSSpeakFrame, TTSTextFrame
from pipecat.services.elevenlabs.tts import ElevenLabsHttpTTSService, ElevenLabsTTSService
from pipecat.tests.utils import run_test

ONCE = APIConnectOptions(max_retry=0, timeout=600)
VOICE, FORMAT = "finch", "pcm_24000"


def _sdk(case: Case) -> ElevenLabs:
    return ElevenLabs(base_url=case["url"], api_key=case["key"], timeout=600)


def convert(case: Case) -> Answer:
    fields: dict[str, Any] = {"output_format": FORMAT, "voice_settings": VoiceSettings(speed=1.0, stability=0.5)}
    fields |= case.get("fields", {})
    try:
        speech = _sdk(case).text_to_speech
        got = speech.convert(case.get("voice", VOICE), text=case["text"], **fields)
        streamed = speech.stream(VOICE, text=case["text"], **fields)
        return {"audio": b"".join(got), "streamed": b"".join(streamed)}
    except ApiError as error:
        return raised(error, status=error.status_code, body=error.body)


def timestamps(case: Case) -> Answer:
    speech = _sdk(case).text_to_speech
    fields: dict[str, Any] = {"text": case["text"], "output_format": FORMAT, "seed": 3}
    whole = speech.convert_with_timestamps(VOICE, **fields)
    pieces = list(speech.stream_with_timestamps(VOICE, **fields))
    timed = [piece.alignment.characters for piece in pieces if piece.alignment]
    return {
        "audio": whole.audio_base_64,
        "characters": whole.alignment and whole.alignment.characters,
        "starts": whole.alignment and whole.alignment.character_start_times_seconds,
        "streamed_characters": [character for characters in timed for character in characters],
    }


def realtime(case: Case) -> Answer:
    speech = _sdk(case).text_to_speech
    speech._ws_base_url = case["url"]  # the SDK takes wss for every server, and this one has no TLS
    got = speech.convert_realtime(VOICE, text=iter(case["pieces"]), output_format=FORMAT)
    return {"audio": b"".join(got)}


def lists(case: Case) -> Answer:
    sdk = _sdk(case)
    return {
        "voices": [voice.voice_id for voice in sdk.voices.get_all().voices],
        "found": [voice.name for voice in sdk.voices.search(search="inc").voices],
        "voice": sdk.voices.get(VOICE).name,
        "models": [model.model_id for model in sdk.models.list()],
        "tier": sdk.user.subscription.get().tier,
        "limit": sdk.user.get().subscription.character_limit,
    }


async def livekit(case: Case) -> Answer:
    async with aiohttp.ClientSession() as session:
        about = {"base_url": case["url"] + "/v1", "api_key": case["key"], "encoding": FORMAT, "http_session": session}
        tts = elevenlabs.TTS(voice_id=VOICE, **about)
        try:
            voices = [voice.id for voice in await tts.list_voices()]
            async with tts.synthesize(case["text"], conn_options=ONCE) as whole:
                once = b"".join([bytes(audio.frame.data) async for audio in whole])
            async with tts.stream(conn_options=ONCE) as stream:
                for piece in case["pieces"]:
                    stream.push_text(piece)
                stream.end_input()
                frames = [audio.frame async for audio in stream]
        finally:
            await tts.aclose()
    timed = [word for frame in frames for word in frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, [])]
    words = [[str(word), word.start_time, word.end_time] for word in timed]
    sound = b"".join(bytes(frame.data) for frame in frames)
    return {"voices": voices, "whole": once, "audio": sound, "words": words}


async def pipecat(case: Case) -> Answer:
    settings = ElevenLabsTTSService.Settings(voice=VOICE)
    url = case["url"].replace("http", "ws")
    service = ElevenLabsTTSService(api_key=case["key"], url=url, sample_rate=24_000, settings=settings)
    return await _speak(service, case)


async def pipecat_http(case: Case) -> Answer:
    settings = ElevenLabsHttpTTSService.Settings(voice=VOICE)
    async with aiohttp.ClientSession() as session:
        about = {"base_url": case["url"], "api_key": case["key"], "aiohttp_session": session}
        return await _speak(ElevenLabsHttpTTSService(sample_rate=24_000, settings=settings, **about), case)


async def _speak(service: Any, case: Case) -> Answer:
    frames = [TTSSpeakFrame(case["text"])]
    downstream, upstream = await run_test(service, frames_to_send=frames, start_timeout=600)
    return {
        "audio": b"".join(frame.audio for frame in downstream if isinstance(frame, TTSAudioRawFrame)),
        "words": [frame.text for frame in downstream if isinstance(frame, TTSTextFrame)],
        "errors": [frame.error for frame in upstream if isinstance(frame, ErrorFrame)],
    }


ASYNC = {"livekit": livekit, "pipecat": pipecat, "pipecat_http": pipecat_http}
SYNC = {"convert": convert, "timestamps": timestamps, "realtime": realtime, "lists": lists}


async def speak(case: Case) -> Answer:
    if (how := case["how"]) in ASYNC:
        return await ASYNC[how](case)
    return await asyncio.to_thread(SYNC[how], case)


async def main() -> None:
    asked = cases()
    answers = await asyncio.gather(*(attempt(speak, case) for case in asked.values()))
    report(dict(zip(asked, answers, strict=True)))


if __name__ == "__main__":
    asyncio.run(main())
