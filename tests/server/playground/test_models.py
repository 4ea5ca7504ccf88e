"""The choice among several models on the playground."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from oscine.server.app import build_models_app
from oscine.speech.models import LoadedModel
from oscine.types import EngineHealth
from oscine.voice import Voice
from tests.server.browsing import Visit, clip_file
from tests.server.playground.conftest import Opener
from tests.server.scripted_engine import BASE_CARD, CARD, ScriptedEngine

CARDS = {
    "preset": replace(CARD, name="preset"),
    "clone": replace(BASE_CARD, name="clone", takes_instructions=False, languages=("english", "german")),
    "design": replace(CARD, name="design", kind="voice_design", speakers=()),
}


@dataclass
class Several:
    visit: Visit
    engines: dict[str, ScriptedEngine]

    def spoken(self) -> dict[str, int]:
        return {name: len(engine.requests) for name, engine in self.engines.items()}


@pytest.fixture
def several(opened: Opener) -> Iterator[Several]:
    engines = {name: ScriptedEngine(frame_s=0.005) for name in CARDS}
    app = build_models_app([LoadedModel.of(engines[name], card) for name, card in CARDS.items()])
    yield Several(opened(app=app, engine=engines["preset"]), engines)
    for engine in engines.values():
        engine.stop()


def test_one_model_needs_no_choice(one: Visit) -> None:
    assert one.page.is_hidden("#model-field")
    one.speak("Hi.")
    one.wait_for("done")
    assert '"model"' not in one.snippet("curl")


def test_each_model_is_chosen_spoken_with_and_remembered(several: Several, tmp_path: Path) -> None:
    one = several.visit
    options = one.page.locator("#model option").all_text_contents()
    assert options == ["preset (preset voices)", "clone (cloned voices)", "design (described voices)"]
    one.speak("Hi.")
    one.wait_for("done")

    one.page.select_option("#model", "design")
    assert one.page.text_content("#model-name") == "design"
    assert one.page.is_hidden("#voices") and one.page.is_visible("#instructions")
    one.page.fill("#instructions", "an old man")
    one.speak("Hello.")
    one.until("window.oscineStats.samplesPlayed === 11520")
    assert several.engines["design"].requests[0].instructions == "an old man"
    assert '"model": "design"' in one.snippet("curl")
    link = one.snippet("link")
    assert "model=design" in link

    one.page.select_option("#model", "clone")
    assert one.page.is_visible("#clip-card") and one.page.is_hidden("#instructions")
    assert one.page.locator("#language option").all_text_contents() == ["Detect", "English", "German"]
    assert one.page.locator(".voice-name").all_text_contents() == ["From a clip"]
    one.page.set_input_files("#clip-file", clip_file(tmp_path))
    one.speak("Hey.")
    one.until("window.oscineStats.samplesPlayed === 7680")
    assert isinstance(several.engines["clone"].requests[0].voice, Voice)
    assert several.spoken() == {"preset": 1, "clone": 1, "design": 1}

    # A link and the history bring their model back.
    one.page.goto(link)
    one.page.reload()
    one.wait_until_loaded()
    assert one.page.input_value("#model") == "design"
    assert one.page.input_value("#instructions") == "an old man"


def test_words_are_spoken_by_the_chosen_model_as_they_are_typed(several: Several) -> None:
    one = several.visit
    one.page.select_option("#model", "design")
    one.page.fill("#instructions", "an old man")
    one.choose_mode("live")
    one.page.locator("#live-line").press_sequentially("Hello there ")
    one.page.press("#live-line", "Enter")
    one.wait_for("done")
    assert several.spoken() == {"preset": 0, "clone": 0, "design": 1}


def test_a_model_that_is_not_ready_says_so_until_it_is(opened: Opener) -> None:
    preset, design = ScriptedEngine(), ScriptedEngine(ready=False)

    def health() -> EngineHealth:
        return EngineHealth("ready" if design.ready else "restarting")

    loaded = [LoadedModel.of(preset, CARDS["preset"]), LoadedModel.of(design, CARDS["design"], health)]
    one = opened(app=build_models_app(loaded), engine=preset)
    choices = one.page.locator("#model option")
    assert choices.all_text_contents() == ["preset (preset voices)", "design (described voices, restarting)"]
    design.ready = True
    one.page.evaluate("() => { document.dispatchEvent(new Event('visibilitychange')); }")  # asks at once
    one.until("document.getElementById('model').options[1].text === 'design (described voices)'")
    assert one.page.input_value("#model") == "preset"
    design.stop()
