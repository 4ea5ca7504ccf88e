"""A phrase that was spoken before comes from memory, as the same speech; nothing else does."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oscine.config import ServerConfig
from oscine.errors import NotFoundError, RequestError
from oscine.process.resources import Owner
from oscine.request import SpeechRequest
from oscine.speech.events import Audio, Ended, SpeechEvent, Started
from oscine.speech.limits import ledger_of
from oscine.speech.models import LoadedModel
from oscine.speech.phrase_cache import Phrase, PhraseCache
from oscine.speech.service import SpeechService
from oscine.types import AudioChunk
from oscine.voice import Voice
from tests.server.scripted_engine import BASE_CARD, CARD, FRAME_SAMPLES, RATE_HZ, ScriptedEngine

HELLO = SpeechRequest(text="Hello there.", voice="wren", seed=3)


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine()
    yield engine
    engine.stop()


@pytest.fixture
def service(engine: ScriptedEngine) -> Iterator[SpeechService]:
    service = SpeechService([LoadedModel.of(engine, CARD)], ServerConfig(phrase_cache_bytes=2**22, segment_chars=100))
    yield service
    service.close()


def speak(service: SpeechService, request: SpeechRequest, **how: Any) -> list[SpeechEvent]:
    async def collect() -> list[SpeechEvent]:
        plan = await service.planner.plan(service.models.first, request, "pcm", **how)
        return [event async for event in service.speak(plan)]

    return asyncio.run(collect())


def sound(events: list[SpeechEvent]) -> bytes:
    return b"".join(event.data for event in events if isinstance(event, Audio))


def remembered(events: list[SpeechEvent]) -> bool | None:
    (started,) = (event for event in events if isinstance(event, Started))
    return started.remembered


def test_the_second_time_is_the_same_speech_without_the_engine(service: SpeechService, engine: ScriptedEngine) -> None:
    first, second = speak(service, HELLO), speak(service, HELLO)
    assert (remembered(first), remembered(second)) == (False, True)
    assert len(engine.requests) == 1
    assert sound(first) == sound(second) and first[-1] == second[-1] and isinstance(first[-1], Ended)
    assert (service.phrases.hits, service.phrases.misses) == (1, 1)
    assert remembered(speak(service, HELLO, cache="only")) is True


@pytest.mark.parametrize(
    "changed",
    [
        {"text": "Hello there!"},
        {"seed": 4},
        {"voice": "finch"},
        {"temperature": 0.5},
        {"greedy": True},
        {"language": "english"},
        {"trim_silence": True},
        {"max_new_tokens": 8},
    ],
)
def test_whatever_changes_the_sound_is_another_phrase(
    service: SpeechService, engine: ScriptedEngine, changed: dict[str, Any]
) -> None:
    speak(service, HELLO)
    assert remembered(speak(service, replace(HELLO, **changed))) is False and len(engine.requests) == 2


@pytest.mark.parametrize("changed", [{"speed": 2.0}, {"sample_rate": 8000}])
def test_speed_and_rate_are_made_from_the_same_phrase(
    service: SpeechService, engine: ScriptedEngine, changed: dict[str, Any]
) -> None:
    other = replace(HELLO, **changed)
    fresh = sound(speak(service, other, cache="off"))
    speak(service, HELLO)
    found = speak(service, other)
    assert remembered(found) is True and sound(found) == fresh


def test_cloned_voices_are_told_apart_by_what_they_are(engine: ScriptedEngine) -> None:
    service = SpeechService([LoadedModel.of(engine, BASE_CARD)], ServerConfig(phrase_cache_bytes=2**20))
    one, other = (np.full(BASE_CARD.speaker_width, value, np.float32) for value in (0.1, 0.2))
    voices = [Voice(one), Voice(other), Voice(one.copy())]
    found = [remembered(speak(service, SpeechRequest(text="Hello.", voice=voice, seed=1))) for voice in voices]
    service.close()
    assert found == [False, False, True]


@pytest.mark.parametrize("request_", [replace(HELLO, seed=None), replace(HELLO, seed=-1)])
def test_random_seeds_are_never_remembered(service: SpeechService, request_: SpeechRequest) -> None:
    assert remembered(speak(service, request_)) is None and remembered(speak(service, request_)) is None
    assert not len(service.phrases)
    with pytest.raises(RequestError, match="needs the seed"):
        speak(service, request_, cache="only")


def test_each_segment_of_a_long_text_is_a_phrase(service: SpeechService, engine: ScriptedEngine) -> None:
    text = "".join(f"Sentence number {number} is as long as it has to be to be one. " for number in range(8))
    long = replace(HELLO, text=text)
    first, segments = speak(service, long), len(engine.requests)
    assert segments > 2 and sound(speak(service, long)) == sound(first) and len(engine.requests) == segments
    with pytest.raises(RequestError, match="one segment"):
        speak(service, long, cache="only")


def test_off_neither_reads_nor_writes(service: SpeechService, engine: ScriptedEngine) -> None:
    assert remembered(speak(service, HELLO, cache="off")) is None and not len(service.phrases)
    speak(service, HELLO)
    assert remembered(speak(service, HELLO, cache="off")) is None and len(engine.requests) == 3


def test_only_refuses_what_is_not_there(service: SpeechService, engine: ScriptedEngine) -> None:
    with pytest.raises(NotFoundError, match="not in the cache") as refused:
        speak(service, HELLO, cache="only")
    assert refused.value.code == "not_cached" and not engine.requests


def test_a_server_without_the_cache_says_so(engine: ScriptedEngine) -> None:
    service = SpeechService([LoadedModel.of(engine, CARD)], ServerConfig())
    assert remembered(speak(service, HELLO)) is None
    with pytest.raises(RequestError, match=r"server\.phrase_cache_bytes"):
        speak(service, HELLO, cache="only")
    service.close()


def test_a_speech_that_was_cut_off_is_not_remembered(service: SpeechService) -> None:
    async def leave() -> None:
        plan = await service.planner.plan(service.models.first, HELLO, "pcm")
        events = service.speak(plan)
        await anext(events)
        await events.aclose()

    asyncio.run(leave())
    assert not len(service.phrases)
    speak(service, replace(HELLO, max_new_tokens=4))  # "length"
    assert not len(service.phrases)


def test_longer_phrases_are_not_collected(service: SpeechService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oscine.speech.phrase_cache.MAX_PHRASE_S", 12 * FRAME_SAMPLES / RATE_HZ)
    speak(service, HELLO)
    assert len(service.phrases) == 1
    speak(service, replace(HELLO, text="Hello theres."))
    assert len(service.phrases) == 1


def phrase_cache(max_bytes: int) -> PhraseCache:
    return PhraseCache(max_bytes, ledger_of(ServerConfig())["phrase"])


def phrase(samples: int) -> Phrase:
    return Phrase(bytes(2 * samples), AudioChunk(b"", 0, "stop"))


def test_the_phrases_that_were_used_last_stay() -> None:
    size = 1024 + 2 * RATE_HZ + 4
    cache = phrase_cache(3 * size)
    for name in "abc":
        cache.keep((name,), phrase(RATE_HZ))
    assert cache.find(("a",))
    cache.keep(("d",), phrase(RATE_HZ))
    assert [cache.find((name,)) is not None for name in "abcd"] == [True, False, True, True]
    assert cache.bytes == 3 * size
    cache.keep(("e",), phrase(5 * RATE_HZ))  # larger than the cache
    cache.keep(("e" * 2 * RATE_HZ,), phrase(RATE_HZ))  # its text counts too
    assert len(cache) == 3


def test_a_removed_model_takes_its_phrases_along() -> None:
    cache, models = phrase_cache(2**20), (object(), object())
    for model in models:
        cache.keep((model, "Hi."), phrase(100))
    cache.forget(models[0])
    assert len(cache) == 1 and cache.find((models[1], "Hi.")) and cache.bytes == 1024 + 200 + 12


def test_a_phrase_counts_while_it_is_recorded(service: SpeechService, monkeypatch: pytest.MonkeyPatch) -> None:
    account = service.ledger["phrase"]
    most, change = 0, account.change

    def note(owner: Owner, size: int) -> None:
        nonlocal most
        change(owner, size)
        most = max(most, len(account))

    monkeypatch.setattr(account, "change", note)
    spoken = sound(speak(service, HELLO))
    assert most == len(spoken) and len(account) == 0


def test_without_room_to_record_it_a_phrase_is_spoken_and_not_kept(service: SpeechService) -> None:
    account = service.ledger["phrase"]
    with account.hold(account.limit.in_all):
        assert sound(speak(service, HELLO))
    assert len(service.phrases) == 0 and len(account) == 0


def test_a_model_that_was_replaced_is_another_one(service: SpeechService) -> None:
    speak(service, HELLO)
    service.models.first.identity = object()  # as of a model that is added under its name
    assert remembered(speak(service, HELLO)) is False
