"""The link that the page offers, and how link and code follow the settings. test_snippets.py runs the code."""

from pathlib import Path

from tests.server.browsing import Visit, clip_file
from tests.server.playground.conftest import Opener
from tests.server.scripted_engine import BASE_CARD

TEXT = """It's "quoted", $HOME, `whoami` \\ 100 %\nand 你好 🙂 </script>."""
SEED = 2**64 - 1  # more digits than a JavaScript number keeps


def test_the_code_follows_every_setting(one: Visit) -> None:
    one.page.fill("#text", "Hi.")
    assert '"voice": "wren"' in one.snippet("curl") and "speech.wav" in one.snippet("curl")
    one.choose_voice("finch")
    one.page.select_option("#format", "mp3")
    one.page.select_option("#language", "chinese")
    one.page.click("#instruction-presets button >> nth=0")
    one.page.focus("#speed")
    one.page.keyboard.press("End")
    code = one.snippet("python")
    for part in ('"finch"', '"mp3"', "speech.mp3", '"chinese"', '"Speak calmly and slowly."', '"speed": 4'):
        assert part in code


def test_a_link_brings_text_and_settings_to_another_page(one: Visit, opened: Opener) -> None:
    one.page.fill("#text", TEXT)
    one.page.fill("#seed", str(SEED))
    one.page.fill("#instructions", "whisper")
    one.page.select_option("#language", "chinese")
    one.page.focus("#speed")
    one.page.keyboard.press("Home")
    one.choose_voice("finch")
    fragment = one.snippet("link").partition("#")[2]
    other = opened()
    other.page.goto(f"{other.url}/?x=1#{fragment}")
    other.wait_until_loaded()
    assert other.page.input_value("#text") == TEXT
    assert other.page.is_checked("#voice-finch")
    values = [other.page.input_value(f"#{name}") for name in ("seed", "instructions", "language", "speed")]
    assert values == [str(SEED), "whisper", "chinese", "0"]
    assert other.page.url.startswith(other.url) and not any(TEXT[:4] in url for url in other.requests[1:])


def test_a_link_to_a_comparison_opens_it(one: Visit) -> None:
    one.choose_mode("compare")
    one.page.fill("#text", "Hello.")
    one.page.select_option("#compare-voice-a", "finch")
    one.page.select_option("#compare-voice-b", "finch")
    one.page.fill("#compare-seed-a", "1")
    one.page.fill("#compare-seed-b", "2")
    link = one.snippet("link")
    one.page.reload()
    one.wait_until_loaded()
    assert one.page.is_hidden("#compare-card")
    one.page.evaluate("(link) => { location.hash = new URL(link).hash; }", link)  # as if it was pasted
    one.page.wait_for_selector("#compare-card:visible")
    names = ("voice-a", "voice-b", "seed-a", "seed-b")
    assert [one.page.input_value(f"#compare-{name}") for name in names] == ["finch", "finch", "1", "2"]
    assert one.page.input_value("#text") == "Hello."


def test_a_link_holds_neither_key_nor_clip(opened: Opener, tmp_path: Path) -> None:
    one = opened(card=BASE_CARD)
    one.page.click("#key-toggle")
    one.page.fill("#key", "sesame")
    one.page.press("#key", "Enter")
    one.page.set_input_files("#clip-file", clip_file(tmp_path))
    one.page.fill("#clip-words", "words of the clip")
    one.page.fill("#text", "Hello.")
    assert one.snippet("link") == f"{one.url}/#text=Hello."


def test_a_voice_that_the_server_lacks_is_skipped(one: Visit) -> None:
    one.page.evaluate("() => { location.hash = 'voice=nobody&language=klingon&text=Hi.'; }")
    one.until("document.getElementById('text').value === 'Hi.'")
    assert one.page.is_checked("#voice-wren") and one.page.input_value("#language") == "auto"
