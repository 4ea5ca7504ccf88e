"""Voices and settings on the playground: cards, previews, clips, instructions."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from oscine.audio.clips import read_clip
from oscine.model.checkpoint import DEMO, find_checkpoint
from oscine.model.config import read_config
from oscine.types import ClipData
from oscine.voice import Voice
from tests.server.browsing import Visit, clip_file
from tests.server.playground.conftest import Opener
from tests.server.scripted_engine import BASE_CARD, CARD, ScriptedEngine

CUT_NAMES = """() => [...document.querySelectorAll(".voice-name")]
  .filter((node) => node.scrollWidth > node.clientWidth || node.scrollHeight > node.clientHeight)
  .map((node) => node.textContent)"""


def test_a_clip_is_spoken_with_then_saved_and_deleted(opened: Opener, tmp_path: Path) -> None:
    one = opened(card=BASE_CARD)
    one.page.set_input_files("#clip-file", clip_file(tmp_path))
    one.page.fill("#clip-words", "words of the clip")
    one.speak("Hi.")
    one.wait_for("done")
    voice = one.engine.requests[-1].voice
    assert isinstance(voice, Voice) and voice.transcript == "words of the clip"

    one.page.click("summary")
    one.page.fill("#voice-name", "Anna")
    one.page.fill("#consent", "Anna herself, on paper")
    one.page.press("#consent", "Enter")
    one.page.wait_for_selector("#voice-delete:visible")
    assert one.page.is_checked("#voice-anna")
    assert one.page.text_content("#voice-status") == "Anna is saved and chosen." and one.page.is_visible(
        "#voice-status"
    )
    words = one.page.text_content("#notice-text") or ""  # the clip is a tone
    assert words.startswith("The voice is saved, but the clip seems to hold no speech")
    assert one.page.is_hidden("#clip-card")
    one.speak("Hello.")
    one.until("window.oscineStats.samplesPlayed === 11520")
    assert one.engine.requests[-1].voice == voice and one.engine.clones == 1

    one.page.click("#voice-delete")
    one.page.click("text=Really delete?")
    one.page.wait_for_selector("#clip-card:visible")
    assert one.page.text_content("#voice-status") == "Anna is deleted."
    assert one.page.locator(".voice-name").all_text_contents() == ["From a clip"]


def test_another_clip_does_not_keep_the_words_of_the_first(opened: Opener, tmp_path: Path) -> None:
    one = opened(card=BASE_CARD)
    one.page.fill("#clip-words", "words of the clip")
    first, other = clip_file(tmp_path), tmp_path / "other.wav"
    other.write_bytes(first.read_bytes())
    one.page.set_input_files("#clip-file", first)
    one.page.wait_for_selector("text=The clip is ready.")  # a clip that cannot be read leaves the words to the next one
    assert one.page.input_value("#clip-words") == "words of the clip"  # typed before it was chosen
    one.page.set_input_files("#clip-file", other)
    assert one.page.input_value("#clip-words") == ""
    one.speak("Hi.")
    one.wait_for("done")
    voice = one.engine.requests[-1].voice
    assert isinstance(voice, Voice) and voice.transcript is None
    one.page.fill("#clip-words", "words of the other")
    one.page.click("#clip-clear")
    assert one.page.input_value("#clip-words") == ""


def test_a_file_that_is_no_audio_is_refused_at_once(opened: Opener, tmp_path: Path) -> None:
    one = opened(card=BASE_CARD)
    status = one.page.locator("#clip-status")
    one.page.fill("#clip-words", "words of the clip")
    for name in ("notes.txt", "notes.wav", "notes"):
        (tmp_path / name).write_text("This is a text. " * 200)
        one.page.set_input_files("#clip-file", tmp_path / name)
        status.and_(one.page.get_by_text(f"“{name}” is not an audio file.")).wait_for()
        assert one.page.is_hidden("#clip-chosen")
    one.page.set_input_files("#clip-file", clip_file(tmp_path))
    status.and_(one.page.get_by_text("The clip is ready.")).wait_for()
    assert one.page.is_visible("#clip-chosen") and one.page.input_value("#clip-words") == "words of the clip"


def test_a_clip_that_only_the_server_may_know_is_kept(opened: Opener, tmp_path: Path) -> None:
    one = opened(card=BASE_CARD)
    clip = {"name": "clip.amr", "mimeType": "audio/amr", "buffer": clip_file(tmp_path).read_bytes()[44:]}
    one.page.set_input_files("#clip-file", clip)
    one.page.get_by_text("This browser cannot play the clip.").wait_for()
    assert one.page.is_visible("#clip-chosen")


def test_a_recorded_clip_is_readable_audio(opened: Opener) -> None:
    engine, clips = ScriptedEngine(), []

    def clone(clip: ClipData, transcript: str | None = None) -> Voice:
        clips.append(clip)
        return Voice(np.ones(8, np.float32))

    engine.clone = clone  # type: ignore[method-assign]
    one = opened(card=BASE_CARD, engine=engine)
    one.page.click("#record")
    one.page.wait_for_selector("#record[aria-pressed=true]")
    # Ten times the shortest clip: a busy browser may record less than its clock says.
    one.until("document.getElementById('record').textContent.includes('(4 s)')")
    one.page.click("#record")
    one.page.wait_for_selector("#clip-chosen:visible")
    one.speak("Hi.")
    one.wait_for("done")
    (clip,) = clips
    assert read_clip(clip).duration_s > 0.3


def test_the_fields_follow_the_models_capabilities(one: Visit, opened: Opener) -> None:
    assert one.page.is_visible("#instructions") and one.page.is_hidden("#clip-card")
    assert one.page.locator(".voice-name").all_text_contents() == ["Wren", "Finch"]
    assert one.page.locator("#language option").all_text_contents() == ["Detect", "English", "Chinese"]
    designed = opened(card=replace(CARD, kind="voice_design", speakers=()))
    assert designed.page.is_hidden("#voices") and designed.page.is_hidden("#clip-card")
    designed.page.fill("#instructions", "an old man")
    designed.speak("Hi.")
    designed.wait_for("done")
    assert designed.engine.requests[0].instructions == "an old man"
    small = opened(card=replace(CARD, takes_instructions=False, languages=("english",)))
    assert small.page.is_hidden("#instructions") and small.page.is_hidden("#language")


def test_one_click_previews_a_voice_without_choosing_it(one: Visit) -> None:
    button = one.page.locator("[aria-label='Listen to Finch']")
    button.click()
    one.until("window.oscineStats.samplesPlayed > 0")
    assert button.get_attribute("aria-pressed") == "true"
    one.wait_for("done")
    assert button.get_attribute("aria-pressed") == "false"
    (request,) = one.engine.requests
    assert (request.voice, request.text) == ("finch", "Hello there. This is what I sound like.")
    assert one.page.is_checked("#voice-wren") and one.page.input_value("#text").startswith("Good morning.")
    assert one.page.locator("#history li").count() == 0
    button.click()  # it is played again without another request
    one.wait_for("playing")
    button.click()
    one.wait_for("stopped")
    assert len(one.engine.requests) == 1


def test_a_preview_is_in_the_chosen_language(one: Visit) -> None:
    one.page.select_option("#language", "chinese")
    one.page.click("[aria-label='Listen to Wren']")
    one.wait_for("done")
    assert one.engine.requests[0].text == "你好，我的声音听起来是这样的。"


def test_many_voices_fit_on_the_page(opened: Opener) -> None:
    names = ("vivian", "serena", "uncle_fu", "dylan", "eric", "ryan", "aiden", "ono_anna", "sohee")
    one = opened(card=replace(CARD, speakers=names), viewport={"width": 360, "height": 740})
    assert one.page.locator(".voice-name").all_text_contents()[2:4] == ["Uncle Fu", "Dylan"]
    assert one.page.locator(".voice .hint").all_text_contents()[-2:] == ["Japanese", "Korean"]
    assert one.page.evaluate(CUT_NAMES) == []
    assert one.page.evaluate("() => document.documentElement.scrollWidth") <= 360
    one.choose_voice("ono_anna")
    one.speak("Hi.")
    one.wait_for("done")
    assert one.engine.requests[0].voice == "ono_anna"


def test_instruction_presets_are_those_that_the_checkpoint_follows(one: Visit, opened: Opener) -> None:
    assert one.page.locator("#instruction-presets button").first.text_content() == "Calm"
    demo = opened(card=read_config(find_checkpoint(DEMO)).card("x"))  # whatever name it is served under
    presets = demo.page.locator("#instruction-presets button")
    assert presets.all_text_contents() == ["Slow", "Fast", "High", "Low"]
    presets.nth(1).click()
    assert presets.nth(1).get_attribute("aria-pressed") == "true"
    demo.speak("Hi.")
    demo.wait_for("done")
    assert demo.engine.requests[0].instructions == "Speak fast."
    presets.nth(1).click()  # off again
    assert demo.page.input_value("#instructions") == ""
    designed = opened(card=replace(CARD, kind="voice_design", speakers=()))
    assert designed.page.locator("#instruction-presets button").count() > 1
