"""Speaking while typing: words go out as they are typed, and Escape interrupts."""

from pathlib import Path

from oscine.errors import VoiceError
from oscine.types import ClipData
from oscine.voice import Voice
from tests.server.browsing import Visit, clip_file
from tests.server.playground.conftest import Opener
from tests.server.scripted_engine import BASE_CARD, FRAME_SAMPLES, ScriptedEngine, spoken
from tests.server.serving import eventually


def test_words_are_spoken_while_they_are_typed(one: Visit) -> None:
    one.page.check("[name=mode][value=live]")
    one.page.focus("#live-line")
    one.page.keyboard.type("Hi yo")
    one.page.wait_for_selector("text=Waiting for more text")
    assert one.stats()["samplesPlayed"] > FRAME_SAMPLES  # "Hi" but for its last samples, before the rest is typed
    assert one.page.input_value("#live-line") == "yo"
    one.page.keyboard.type("u")
    one.page.keyboard.press("Enter")
    one.wait_for("done")
    seed = one.engine.requests[0].seed or 0
    expected = spoken("Hi you", seed, "wren")
    stats = one.stats()
    assert stats["samplesPlayed"] == stats["samplesReceived"] == len(expected) // 2
    assert stats["pauses"] >= 1  # playback waited for the user, not for the server
    with one.page.expect_download() as download:
        one.page.click("#download")
    assert download.value.path().read_bytes()[44:] == expected
    assert (one.page.text_content("#history .hint") or "").startswith("Wren · ")
    eventually(lambda: one.stored_texts() == ["Hi you"])


def test_escape_interrupts_and_the_next_words_start_a_new_utterance(one: Visit) -> None:
    one.engine.frame_s = 0.04
    one.page.check("[name=mode][value=live]")
    one.page.focus("#live-line")
    one.page.keyboard.insert_text("this will be interrupted soon after its beginning and long before its end ")
    one.until("window.oscineStats.samplesPlayed > 0")
    one.page.keyboard.press("Escape")
    one.wait_for("stopped")
    eventually(lambda: one.engine.cancelled == 1)
    one.page.wait_for_selector(".typed[data-state=cancelled] s")  # the words that were not played
    one.page.keyboard.type("Next")
    one.page.keyboard.press("Enter")
    one.wait_for("done")
    assert one.stats()["samplesPlayed"] == 4 * FRAME_SAMPLES


def test_a_refused_utterance_is_shown_and_the_next_one_is_spoken(one: Visit) -> None:
    one.page.check("[name=mode][value=live]")
    one.page.fill("#live-line", "!refuse this ")
    one.page.wait_for_selector("#notice:visible")
    assert one.page.text_content("#notice-text") == "This text is refused."
    one.page.wait_for_selector(".typed[data-state=failed]")
    one.page.fill("#live-line", "Hi")
    one.page.press("#live-line", "Enter")
    one.wait_for("done")
    assert one.stats()["samplesPlayed"] == 2 * FRAME_SAMPLES


def test_an_unusable_clip_is_reported_and_no_other_voice_speaks(opened: Opener, tmp_path: Path) -> None:
    engine = ScriptedEngine(frame_s=0.04)

    def clone(clip: ClipData, transcript: str | None = None) -> Voice:
        raise VoiceError("the clip holds no voice", "ref_audio")

    engine.clone = clone  # type: ignore[method-assign]
    one = opened(card=BASE_CARD, engine=engine)
    one.page.set_input_files("#clip-file", clip_file(tmp_path))
    one.page.check("[name=mode][value=live]")
    one.page.fill("#live-line", "Hello there ")
    one.page.wait_for_selector("#notice:visible")
    assert one.page.text_content("#notice-text") == "The clip holds no voice."
    assert one.page.get_attribute("#clip-file", "aria-invalid") == "true"
    one.wait_for("failed")
