"""Words on the playground of a server with an aligner: highlighted while they are heard, and saved as subtitles."""

import contextlib
from pathlib import Path

import playwright.sync_api
import pytest

from oscine.config import ServerConfig
from tests.align.scripted_whisper import scripted_whisper
from tests.server.browsing import Visit
from tests.server.playground.conftest import Opener
from tests.server.scripted_engine import FRAME_SAMPLES

TEXT = "Hello there. How are you?"
TRIES = 20  # a busy browser may paint nothing while a word is heard
RECORD_HIGHLIGHTS = """() => {
  window.highlighted = [];
  const record = (changes) => {
    for (const { target } of changes) if (target.dataset.state === "now") window.highlighted.push(target.textContent);
  };
  new MutationObserver(record).observe(document.getElementById("words"), { attributes: true, subtree: true });
}"""


@pytest.fixture
def aligned(opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Visit:
    monkeypatch.syspath_prepend(tmp_path / "library")
    return opened(config=ServerConfig(aligner=str(scripted_whisper(tmp_path)), aligner_wait_s=600))


def words(one: Visit, state: str) -> list[str]:
    found: list[str] = one.page.locator(f"#words [data-state='{state}']").all_text_contents()
    return found


def test_words_are_highlighted_while_they_are_heard_and_saved_as_subtitles(aligned: Visit) -> None:
    aligned.speak(TEXT)
    aligned.wait_for("done")  # on a busy machine the words may come after the audio
    aligned.until("document.querySelectorAll('#words [data-state=past]').length === 5")
    assert aligned.stats()["samplesPlayed"] == len(TEXT) * FRAME_SAMPLES
    assert words(aligned, "past") == TEXT.split()
    with aligned.page.expect_download() as download:
        aligned.page.click("#subtitles")
    assert download.value.suggested_filename == "oscine-hello-there-how-are-you.srt"
    first, second = download.value.path().read_text("utf-8").strip().split("\n\n")
    assert first.startswith("1\n00:00:00,") and first.endswith("\nHello there.")
    assert second.endswith("\nHow are you?")
    # A click plays from there.
    aligned.page.evaluate(RECORD_HIGHLIGHTS)
    for _ in range(TRIES):
        aligned.page.click("#words span:nth-child(4)")
        with contextlib.suppress(playwright.sync_api.TimeoutError):
            aligned.page.wait_for_function("() => window.highlighted.length > 0", timeout=5_000)
            break
    assert aligned.page.evaluate("window.highlighted")[0] in ("are", "you?")
    aligned.page.keyboard.press("Escape")


def test_typed_words_have_times_too(aligned: Visit) -> None:
    aligned.choose_mode("live")
    aligned.page.fill("#live-line", "Good morning.")
    aligned.page.press("#live-line", "Enter")
    aligned.wait_for("done")
    assert words(aligned, "past") == ["Good", "morning."]


def test_a_server_without_an_aligner_shows_no_words(one: Visit) -> None:
    one.speak("Hello.")
    one.wait_for("done")
    assert one.page.is_hidden("#words") and one.page.is_hidden("#subtitles")
