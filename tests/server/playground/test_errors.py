"""Errors on the playground, in plain words and beside the field that they concern."""

import math
from dataclasses import replace
from typing import Any

import pytest

from oscine.config import ServerConfig
from oscine.errors import OverloadedError
from tests.server.browsing import Visit
from tests.server.playground.conftest import Opener
from tests.server.scripted_engine import CARD, FRAME_SAMPLES


def test_a_refusal_is_shown_beside_its_field(one: Visit) -> None:
    one.speak("!refuse")
    one.page.wait_for_selector("#notice:visible")
    assert one.page.text_content("#notice-text") == "This text is refused."
    assert "Request " in (one.page.text_content("#notice-detail") or "")
    assert one.page.get_attribute("#text", "aria-invalid") == "true"
    one.wait_for("failed")
    one.expect("400")
    one.speak("Hi.")
    one.wait_for("done")
    assert one.page.is_hidden("#notice") and one.page.get_attribute("#text", "aria-invalid") is None


# Text of the button and whether it is disabled, at each change: the page may be a second further when a test looks.
RECORD_BUTTON = """() => {
    const button = document.getElementById('notice-retry');
    window.buttonStates = [];
    const record = () => window.buttonStates.push([button.textContent, button.disabled]);
    const changes = {attributes: true, childList: true, characterData: true, subtree: true};
    new MutationObserver(record).observe(button, changes);
}"""


def test_a_busy_server_says_when_to_try_again(one: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise OverloadedError("all slots are taken", retry_after_s=0.9)

    monkeypatch.setattr(one.engine, "submit", refuse)
    one.page.evaluate(RECORD_BUTTON)
    one.speak("Hi.")
    button = one.page.locator("#notice-retry")
    button.wait_for()
    assert ["Try again in 1 s", True] in one.page.evaluate("window.buttonStates")
    assert one.page.text_content("#notice-text") == "The server is busy with other listeners."
    assert (one.page.text_content("#notice-detail") or "").startswith("All slots are taken.")
    one.expect("429")
    monkeypatch.undo()
    button.and_(one.page.locator(":enabled")).click()
    one.wait_for("done")


def test_a_broken_stream_is_reported_and_its_audio_is_played(one: Visit) -> None:
    # The browser drops data that arrives together with the break: it waits for some.
    one.engine.max_frames = one.engine.status().frames + 3
    one.speak("Hello!break")
    one.until("window.oscineStats.samplesReceived > 0")
    one.engine.max_frames = math.inf
    one.wait_for("failed")
    assert "broke off" in (one.page.text_content("#notice-text") or "")
    one.until("window.oscineStats.samplesPlayed === window.oscineStats.samplesReceived")
    assert 0 < one.stats()["samplesPlayed"] <= 5 * FRAME_SAMPLES
    one.expect("ERR_INCOMPLETE_CHUNKED_ENCODING")


def test_a_missing_key_is_asked_for_and_kept_in_this_tab_only(opened: Opener) -> None:
    one = opened(config=ServerConfig(api_keys=("sesame",)), ready=False)
    one.page.wait_for_selector("#key:focus")
    one.expect("401")
    assert "needs an API key" in (one.page.text_content("#key-hint") or "") and one.page.is_hidden("#notice")
    one.page.keyboard.type("sesam")
    one.page.keyboard.press("Enter")
    one.until("document.getElementById('key-hint').textContent.includes('does not accept')")
    one.expect("401")
    one.page.fill("#key", "sesame")
    one.page.keyboard.press("Enter")
    one.wait_until_loaded()
    one.speak("Hi.")
    one.wait_for("done")
    one.page.check("[name=mode][value=live]")
    one.page.fill("#live-line", "Hello ")
    one.page.press("#live-line", "Enter")
    one.until("window.oscineStats.samplesPlayed === 6 * 1920")
    assert "sesame" not in one.snippet("link") + one.snippet("curl") + one.snippet("python")
    kept = one.page.evaluate(
        "[JSON.stringify({...localStorage}), JSON.stringify({...sessionStorage}), document.cookie]"
    )
    assert ["sesame" in store for store in kept] == [False, True, False]


def test_the_metrics_are_opened_with_the_key(opened: Opener) -> None:
    one = opened(config=ServerConfig(api_keys=("sesame",)), ready=False)
    one.page.wait_for_selector("#key:focus")
    one.expect("401")
    one.page.click("#key-toggle")
    assert one.page.locator("a[href*=metrics]").count() == 0  # a link in a new tab would show the JSON of a 401
    one.page.click("#metrics")
    one.page.wait_for_selector("#key:focus")  # it is asked for
    one.expect("401")
    one.page.fill("#key", "sesame")
    one.page.keyboard.press("Enter")
    one.wait_until_loaded()
    with one.page.expect_popup() as opening:
        one.page.click("#metrics")
    assert "oscine_requests_total" in (opening.value.text_content("body") or "")


def test_the_page_waits_until_the_server_has_started(one: Visit) -> None:
    one.engine.ready = False
    one.page.reload()
    one.page.wait_for_selector("#server-state[data-state=starting]")
    one.engine.ready = True
    one.page.wait_for_selector("#server-state[data-state=ready]")
    one.wait_until_loaded()
    one.complaints[:] = [text for text in one.complaints if "503" not in text]


def test_a_text_in_a_foreign_script_is_spoken_with_a_warning(opened: Opener) -> None:
    one = opened(card=replace(CARD, languages=("english",)))
    one.speak("你好")
    one.wait_for("done")
    one.page.wait_for_selector("#notice[data-kind=warn]")
    assert "Chinese characters" in (one.page.text_content("#notice-text") or "")
