"""Speaking on the playground: the samples that the server generates are the samples that are played."""

from pathlib import Path

import pytest

from oscine.audio.clips import wav_header
from oscine.config import ServerConfig
from tests.server.browsing import PLAIN_HOST, Visit, clip_file
from tests.server.playground.conftest import Opener
from tests.server.scripted_engine import BASE_CARD, FRAME_SAMPLES, RATE_HZ, spoken
from tests.server.serving import eventually


def test_every_generated_sample_is_played_once_and_can_be_saved(one: Visit) -> None:
    one.page.fill("#seed", "3")
    one.choose_voice("finch")
    one.speak("Hello.")
    one.wait_for("done")
    expected = spoken("Hello.", 3, "finch")
    stats = one.stats()
    assert stats["samplesReceived"] == stats["samplesPlayed"] == len(expected) // 2 == 6 * FRAME_SAMPLES
    with one.page.expect_download() as download:
        one.page.click("#download")
    assert download.value.suggested_filename == "oscine-hello.wav"
    assert download.value.path().read_bytes() == wav_header(RATE_HZ, len(expected) // 2) + expected
    assert one.page.text_content("#figure-received") == one.page.text_content("#figure-played") == "0.48"
    first_byte, first_sound = (int(one.page.text_content(f"#figure-{name}") or "") for name in ("byte", "sound"))
    assert 0 < first_byte <= first_sound


def test_audio_is_played_while_it_is_generated_and_stop_stops_page_and_engine(one: Visit) -> None:
    one.engine.frame_s = 0.02
    one.speak("word " * 100)
    one.until("window.oscineStats.samplesPlayed > 0")
    assert one.stats()["state"] == "speaking" and one.engine.status().slots_active == 1
    one.page.keyboard.press("Escape")
    one.wait_for("stopped")
    eventually(lambda: one.engine.cancelled == 1)
    one.page.wait_for_selector("#stop:disabled")  # the player has confirmed that its queue is empty
    assert one.stats()["samplesPlayed"] < one.stats()["samplesReceived"]
    # Leftovers in the queue would be played before the next speech.
    one.speak("Hi.")
    one.wait_for("done")
    assert one.stats()["samplesPlayed"] == 3 * FRAME_SAMPLES
    assert "stopped" in (one.page.locator("#history li").nth(1).text_content() or "")


def test_an_example_of_a_kind_is_spoken_and_the_page_tells_what_was_read(one: Visit) -> None:
    one.page.click("#examples >> text=Prices")
    assert "$12.50" in one.page.input_value("#text")
    assert one.page.is_hidden("#read-as")
    one.speak("It **costs** more.")
    one.wait_for("done")
    assert one.page.text_content("#read-as") == "Read as: It costs more."


def test_speaking_again_replaces_the_first_speech(one: Visit) -> None:
    one.engine.frame_s = 0.02
    one.speak("word " * 100)
    one.until("window.oscineStats.samplesPlayed > 0")
    one.speak("Hi.")
    one.wait_for("done")
    assert one.stats()["samplesPlayed"] == 3 * FRAME_SAMPLES
    eventually(lambda: one.engine.cancelled == 1)


def test_settings_reach_the_engine_unchanged(one: Visit) -> None:
    one.page.fill("#seed", str(2**64 - 1))
    one.page.fill("#instructions", "whisper")
    one.page.select_option("#language", "chinese")
    one.page.focus("#speed")
    one.page.keyboard.press("End")
    one.speak("你好")
    one.wait_for("done")
    (request,) = one.engine.requests
    assert (request.seed, request.instructions, request.language) == (2**64 - 1, "whisper", "chinese")
    assert one.page.text_content("#speed-value") == "4×"
    assert one.stats()["samplesPlayed"] == pytest.approx(2 * FRAME_SAMPLES / 4, abs=FRAME_SAMPLES / 4)


def test_without_a_worklet_the_page_plays_the_same_samples(opened: Opener, tmp_path: Path) -> None:
    one = opened(host=PLAIN_HOST, card=BASE_CARD, config=ServerConfig(allowed_hosts=(PLAIN_HOST,)))
    assert one.page.evaluate("window.isSecureContext") is False
    assert one.page.is_disabled("#record")
    one.page.set_input_files("#clip-file", clip_file(tmp_path))
    one.speak("Hello.")
    one.wait_for("done")
    assert one.stats()["samplesPlayed"] == 6 * FRAME_SAMPLES
    one.complaints[:] = [text for text in one.complaints if "ScriptProcessorNode is deprecated" not in text]


def test_a_new_page_has_a_text_ready_to_speak_and_keeps_what_the_user_typed(one: Visit) -> None:
    assert one.page.input_value("#text").startswith("Good morning.")
    one.page.click("#speak")
    one.until("window.oscineStats.samplesPlayed > 0")
    assert one.engine.requests[0].text.startswith("Good morning.")
    one.page.keyboard.press("Escape")
    one.page.fill("#text", "")
    one.engine.ready = False
    one.page.evaluate("() => document.dispatchEvent(new Event('visibilitychange'))")
    one.page.wait_for_selector("#server-state[data-state=starting]")
    one.engine.ready = True
    one.page.wait_for_selector("#server-state[data-state=ready]")  # the model is loaded again
    one.wait_until_loaded()
    assert one.page.input_value("#text") == ""
    one.complaints[:] = [text for text in one.complaints if "503" not in text]
