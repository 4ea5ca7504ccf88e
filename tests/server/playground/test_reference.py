"""/docs: every endpoint with its fields, and a form that sends requests."""

from oscine.config import ServerConfig
from tests.server.browsing import Visit
from tests.server.playground.conftest import Opener
from tests.server.scripted_engine import FRAME_SAMPLES


def open_reference(one: Visit) -> None:
    one.page.goto(one.url + "/docs")
    one.page.wait_for_selector("#contents a >> nth=5")


def send(one: Visit, endpoint: str, **fields: str) -> str:
    """The response as the page shows it."""
    card = one.page.locator("section.card").filter(has=one.page.get_by_role("heading", name=endpoint, exact=True))
    card.get_by_text("Try it").click()
    for label, value in fields.items():
        card.get_by_label(label).fill(value)
    card.get_by_role("button", name="Send").click()
    card.locator(".result p").wait_for()
    return card.locator(".result").text_content() or ""


def test_the_form_sends_a_sample_and_shows_the_response(opened: Opener) -> None:
    one = opened()
    open_reference(one)
    assert send(one, "POST /v1/audio/speech").startswith("200 OK · audio/wav · ")
    assert one.engine.requests[-1].text == "Hello there."
    one.until("document.querySelector('audio').readyState > 0")
    audio_s = one.page.evaluate("() => document.querySelector('audio').duration")
    assert audio_s == len("Hello there.") * FRAME_SAMPLES / 24_000
    assert send(one, "POST /v1/audio/speech/batch").count('"status": "success"') == 2
    assert '"id": "scripted"' in send(one, "GET /v1/models/{model_id}", Path="/v1/models/scripted")


def test_the_form_shows_errors_and_sends_the_key(opened: Opener) -> None:
    one = opened(config=ServerConfig(api_keys=("sesame",)), ready=False)
    open_reference(one)
    refused = send(one, "GET /v1/audio/voices")
    assert refused.startswith("401 Unauthorized · application/json") and "an API key is required" in refused
    one.page.fill("#key", "sesame")
    assert "did you mean it by 'text'?" in send(one, "POST /v1/audio/speech", Body='{"text": "Hi."}')
    one.complaints.clear()  # browsers log every refused request


def test_the_required_field_is_first_and_ignored_ones_are_folded_away(opened: Opener) -> None:
    one = opened()
    open_reference(one)
    card = one.page.get_by_role("heading", name="POST /v1/audio/speech", exact=True).locator("..")
    first = card.locator("table.fields").first.locator("tr").first.text_content()
    assert first.startswith("inputstring or array of objectRequired.")
    assert card.get_by_text("ambient_sound").count() == 1 and not card.get_by_text("ambient_sound").is_visible()
    card.locator(".ignored summary").click()
    assert card.get_by_text("ambient_sound").is_visible()
    assert one.page.get_by_role("link", name="asyncapi.json").get_attribute("href") == "asyncapi.json"


def test_uploads_are_left_to_the_playground(opened: Opener) -> None:
    one = opened()
    open_reference(one)
    upload = one.page.get_by_role("heading", name="POST /v1/audio/voices", exact=True).locator("..")
    assert upload.get_by_text("Try it").count() == 0
