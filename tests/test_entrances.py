"""Every field through every entrance gives the same SpeechRequest, and a value that cannot be used the same error."""

import asyncio
import contextlib
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import oscine.api
from oscine import Oscine
from oscine.commands import main as cli
from oscine.deploy.tritonserver.speech_host import speech_fields
from oscine.deploy.tritonserver.tensors import SPEECH_INPUTS
from oscine.errors import RequestError
from oscine.request import SpeechRequest, Turn
from oscine.speech.plan import SpeechPlan, SpeechPlanner
from oscine.voice import blended
from tests.server import entrances
from tests.server.live.live_client import Server, server_of
from tests.server.scripted_engine import CARD, ScriptedEngine, preset_vector

# Fields that an entrance cannot carry, and why.
WITHOUT = {
    "triton": {"speed", "volume", "sample_rate"},  # its samples are the engine's own
    "over_dashscopes_http": {"volume"},  # from 0 to 100
    "live_as_dashscope": {"volume"},
}
VALUES: dict[str, Any] = {
    "text_level": "raw",
    "normalize": False,
    "markup": False,
    "paragraph_pause_s": 0.5,
    "pronunciations": {"Hi": "Hey"},
    "voice": "finch",
    "language": "zh-CN",
    "instructions": "Calmly.",
    "text_mode": "whole",
    "speed": 1.5,
    "volume": 0.5,
    "sample_rate": 16_000,
    "seed": 2**64 - 1,
    "greedy": True,
    "temperature": 0.5,
    "top_k": 7,
    "top_p": 0.25,
    "repetition_penalty": 1.25,
    "subtalker_temperature": 0.75,
    "subtalker_top_k": 9,
    "subtalker_top_p": 0.125,
    "max_new_tokens": 50,
    "trim_silence": True,
    "trim_echo": True,
}
BAD: dict[str, Any] = {
    "paragraph_pause_s": 10.5,
    "language": "x" * 65,
    "instructions": "x" * 4097,
    "speed": 4.5,
    "volume": -0.5,
    "sample_rate": 96_000,
    "temperature": -0.5,
    "top_k": -1,
    "top_p": 1.5,
    "repetition_penalty": 0.0,
    "subtalker_temperature": 1e-7,
    "subtalker_top_k": -1,
    "subtalker_top_p": 0.0,
    "max_new_tokens": 0,
}


@dataclass
class Entrances:
    """Each asks with these fields, and returns the message of the error, or None."""

    server: Server
    tts: Oscine
    folder: Path
    planned: list[SpeechRequest] = field(default_factory=list)  # by every entrance

    def request(self, ask: str, **fields: Any) -> SpeechRequest:
        self.planned.clear()
        assert self.message(ask, fields) is None
        return self.planned[-1]

    def message(self, ask: str, fields: dict[str, Any]) -> str | None:
        own: Callable[[dict[str, Any]], str | None] | None = getattr(self, ask, None)
        return own(fields) if own else getattr(entrances, ask)(self.server, fields)

    def triton(self, fields: dict[str, Any]) -> str | None:
        tensors = {
            name: json.dumps(value) if isinstance(value, dict) else value.encode() if isinstance(value, str) else value
            for name, value in fields.items()
        }
        assert tensors.keys() <= {spec.name for spec in SPEECH_INPUTS}
        service = self.server.service

        async def plan() -> None:
            text, options = speech_fields({"text": b"Hi.", **tensors})
            await service.plan(service.route(options), options, text, "pcm")

        return refusal(lambda: asyncio.run(plan()))

    def python(self, fields: dict[str, Any]) -> str | None:
        return refusal(lambda: self.tts.speak(**{"text": "Hi.", **fields}))

    def command_line(self, fields: dict[str, Any]) -> str | None:
        options = [option for name, value in fields.items() if name != "text" for option in options_of(name, value)]
        text = [fields.get("text", "Hi.")] if "script" not in fields else []
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            command = ["say", *text, "-o", str(self.folder / "speech.pcm"), *options]
            return refusal(lambda: cli.app(command, standalone_mode=False))


def options_of(name: str, value: Any) -> list[str]:
    if isinstance(value, dict):
        return [f"--pronounce={word}={spoken}" for word, spoken in value.items()]
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{dashed}" if value else f"--no-{dashed}"]
    return [f"--{dashed}={value}"]


def refusal(call: Callable[[], object]) -> str | None:
    try:
        call()
    except RequestError as error:
        return str(error)
    return None


ASK = [*(one.__name__ for one in entrances.ENTRANCES), "triton", "python", "command_line"]


def local_engine(*_: object, **__: object) -> ScriptedEngine:
    """What the Python API gets instead of a model."""
    engine: Any = ScriptedEngine()
    talker = SimpleNamespace(speakers=dict.fromkeys(CARD.speakers, 1))
    engine.model_config = SimpleNamespace(kind="custom_voice", talker=talker, card=lambda name: CARD)
    engine.sample_rate_hz, engine.check = CARD.sample_rate_hz, lambda request: None
    return engine


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Entrances]:
    planned: list[SpeechRequest] = []
    plan, checked = SpeechPlanner.plan, Oscine._checked

    async def plan_and_keep(*arguments: Any, **options: Any) -> SpeechPlan:
        found = await plan(*arguments, **options)
        planned.append(found.request)
        return found

    def check_and_keep(*arguments: Any) -> SpeechRequest:
        planned.append(checked(*arguments))
        return planned[-1]

    engine = ScriptedEngine()
    with pytest.MonkeyPatch.context() as patch, server_of(engine) as server:
        patch.setattr(SpeechPlanner, "plan", plan_and_keep)
        patch.setattr(Oscine, "_checked", check_and_keep)
        patch.setattr(oscine.api, "build_engine", local_engine)
        yield Entrances(server, Oscine(), tmp_path_factory.mktemp("entrances"), planned)
    engine.stop()


def test_every_field_is_tried() -> None:
    assert VALUES.keys() == SpeechRequest.fields().keys()
    unbounded = {"text_level", "normalize", "markup", "pronunciations", "voice", "text_mode", "greedy", "seed"}
    assert SpeechRequest.fields().keys() - BAD.keys() - unbounded == {"trim_silence", "trim_echo"}


@pytest.mark.parametrize("ask", ASK)
@pytest.mark.parametrize("name", VALUES)
def test_a_field_gives_the_same_request_whichever_way_it_comes(everywhere: Entrances, ask: str, name: str) -> None:
    if name in WITHOUT.get(ask, ()):
        pytest.skip("this entrance does not have the field")
    expected = everywhere.request("over_http", **{name: VALUES[name]})
    request = everywhere.request(ask, **{name: VALUES[name]})
    drawn = {"seed", "trim_silence"} - {name}  # the seed is random; Python keeps leading silence
    for other in SpeechRequest.fields().keys() - drawn:
        assert getattr(request, other) == getattr(expected, other), other
    if name not in ("normalize", "language"):  # it becomes a level, a name
        assert getattr(request, name) == VALUES[name]


@pytest.mark.parametrize("ask", ASK)
def test_a_mix_of_voices_is_the_same_voice_whichever_way_it_comes(everywhere: Entrances, ask: str) -> None:
    request = everywhere.request(ask, voice="wren(3)+finch")
    assert request.voice == blended([(preset_vector("wren"), 3), (preset_vector("finch"), 1)])


@pytest.mark.parametrize("ask", ["over_http", "as_item_of_a_batch", "python", "command_line"])
def test_a_dialogue_gives_the_same_turns_whichever_way_it_comes(everywhere: Entrances, ask: str) -> None:
    first = {"text": "Hi.", "voice": "finch", "instructions": "Calmly.", "language": "english", "pause_s": 0.5}
    second = {"text": "Hello.", "voice": "wren"}
    script = everywhere.folder / "dialogue.json"
    script.write_text(json.dumps([first, second]))
    turns = [Turn(**first), Turn(**second)]
    own = {"python": {"text": "", "turns": turns}, "command_line": {"text": "", "script": script}}
    request = everywhere.request(ask, **own.get(ask, {"input": [first, second]}))
    assert (request.text, list(request.turns)) == ("", turns)


@pytest.mark.parametrize("ask", ASK)
@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_gives_the_same_error_whichever_way_it_comes(everywhere: Entrances, ask: str, name: str) -> None:
    if name in WITHOUT.get(ask, ()):
        pytest.skip("this entrance does not have the field")
    with pytest.raises(RequestError) as caught:
        SpeechRequest("Hi.", **{name: BAD[name]}).check()
    assert everywhere.message(ask, {name: BAD[name]}) == str(caught.value)
