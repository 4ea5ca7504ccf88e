"""History and downloads: a speech stays, survives a reload, and is saved without speaking again."""

from pathlib import Path

import numpy as np
import pytest

from oscine.audio.clips import read_clip
from tests.server.browsing import Visit, clip_file
from tests.server.playground.conftest import Opener
from tests.server.scripted_engine import BASE_CARD, FRAME_SAMPLES, RATE_HZ, spoken
from tests.server.serving import eventually


def test_the_history_plays_a_speech_again(one: Visit) -> None:
    for text in ("One.", "Seven."):
        one.speak(text)
        one.wait_for("done")
    assert one.page.locator("#history .said").all_text_contents() == ["Seven.", "One."]
    one.page.click("#history >> text=Replay >> nth=-1")
    one.until("window.oscineStats.samplesReceived === 7680")
    one.wait_for("done")
    assert one.stats()["samplesPlayed"] == 4 * FRAME_SAMPLES
    assert len(one.engine.requests) == 2


def test_the_history_survives_a_reload_with_its_audio(one: Visit) -> None:
    one.page.fill("#seed", "3")
    one.choose_voice("finch")
    one.speak("Hello.")
    one.wait_for("done")
    eventually(lambda: one.stored_texts() == ["Hello."])
    one.page.click("#history-clear")
    assert one.page.locator("#history li").count() == 0
    for text in ("Hello.", "Again."):
        one.speak(text)
        one.wait_for("done")
    eventually(lambda: one.stored_texts() == ["Hello.", "Again."])
    one.page.reload()
    one.wait_until_loaded()
    one.page.wait_for_selector("#history li >> nth=1")
    assert one.page.locator("#history .said").all_text_contents() == ["Again.", "Hello."]
    with one.page.expect_download() as download:
        one.page.click("[aria-label='Download “Hello.” as WAV']")
    assert download.value.path().read_bytes()[44:] == spoken("Hello.", 3, "finch")
    one.page.click("[aria-label='Replay “Again.”']")
    one.wait_for("done")
    assert one.stats()["samplesPlayed"] == 6 * FRAME_SAMPLES
    one.page.click("[aria-label='Remove “Again.”']")
    eventually(lambda: one.stored_texts() == ["Hello."])
    one.page.reload()
    one.page.wait_for_selector("#history li")
    assert one.page.locator("#history .said").all_text_contents() == ["Hello."]


FILL_STORE = """async ([count, samples]) => {
  const { TakeStore } = await import("./playground/store.js");
  const store = new TakeStore();
  const record = { voice: "Wren", rateHz: 24000, state: "done", request: {}, samples: new Int16Array(samples) };
  for (let i = 0; i < count; i++) await store.add({ ...record, text: String(i) });
  return (await store.all()).map(({ text }) => text);
}"""


def test_the_history_is_bounded_by_count_and_by_size(one: Visit) -> None:
    assert one.page.evaluate(FILL_STORE, [25, 100]) == [str(number) for number in range(5, 25)]
    one.clear_history()
    assert one.page.evaluate(FILL_STORE, [4, 12 * 2**20]) == ["2", "3"]  # of 24 MiB each


def test_a_stored_speech_holds_no_clip_and_its_settings_can_be_used_again(opened: Opener, tmp_path: Path) -> None:
    one = opened(card=BASE_CARD)
    one.page.set_input_files("#clip-file", clip_file(tmp_path))
    one.page.fill("#seed", "5")
    one.speak("Hello.")
    one.wait_for("done")
    eventually(lambda: one.stored_texts() == ["Hello."])
    assert one.stored()[0]["request"] == {"seed": "5", "input": "Hello."}
    one.page.fill("#text", "Other.")
    one.page.fill("#seed", "")
    one.page.click("[aria-label='Use text and settings of “Hello.”']")
    assert one.page.input_value("#text") == "Hello." and one.page.input_value("#seed") == "5"


@pytest.mark.parametrize("form", ["flac", "mp3", "opus", "aac"])
def test_any_format_is_downloaded_without_speaking_again(one: Visit, form: str) -> None:
    one.speak("Hello.")
    one.wait_for("done")
    one.page.select_option("#format", form)
    with one.page.expect_download() as download:
        one.page.click("#download")
    assert download.value.suggested_filename == f"oscine-hello.{form}"
    (request,) = one.engine.requests
    expected = spoken("Hello.", request.seed or 0, "wren")
    clip = read_clip(download.value.path().read_bytes())
    if form == "flac":
        assert np.rint(clip.samples * 32768).astype("<i2").tobytes() == expected
    else:
        assert abs(clip.duration_s - len(expected) / 2 / RATE_HZ) < 0.15


def test_a_stopped_speech_can_be_downloaded_as_far_as_it_got(one: Visit) -> None:
    one.engine.frame_s = 0.02
    one.speak("word " * 100)
    one.until("window.oscineStats.samplesPlayed > 0")
    one.page.keyboard.press("Escape")
    one.wait_for("stopped")
    one.page.select_option("#format", "flac")
    with one.page.expect_download() as download:
        one.page.click("#download")
    clip = read_clip(download.value.path().read_bytes())
    assert len(clip.samples) == one.stats()["samplesReceived"]
