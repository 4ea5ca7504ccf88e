"""Accessibility of the playground: keyboard, screen reader, phone, light and dark, reduced motion."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.browsing import Visit, clip_file, visit
from tests.server.scripted_engine import BASE_CARD, FRAME_SAMPLES

PLAYGROUND = Path(__file__).parents[3] / "src/oscine/server/playground"

# Names as a screen reader forms them, from the attributes and elements that this page uses.
NAMELESS = """() => [...document.querySelectorAll("input, select, textarea, button, a, canvas, audio, [role]")]
  .filter((node) => !node.ariaLabel && !node.hasAttribute("aria-labelledby") && !node.textContent.trim()
    && ![...(node.labels ?? [])].some((label) => label.textContent.trim())
    && !(node.getAttribute("role") === "status" || node.querySelector("[id]")))
  .map((node) => node.outerHTML.slice(0, 120))"""

BROKEN_REFERENCES = """() => ["for", "aria-controls", "aria-describedby", "aria-labelledby", "aria-errormessage"]
  .flatMap((name) => [...document.querySelectorAll(`[${name}]`)].map((node) => node.getAttribute(name)))
  .filter((id) => document.querySelectorAll(`#${id}`).length !== 1)"""

# WCAG contrast of every element with its own text against the nearest painted background.
FAINT = """() => {
  const rgba = (text) => {
    const pen = new OffscreenCanvas(1, 1).getContext("2d");
    pen.fillStyle = text;
    pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((value) => value / 255)
    .map((value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
    .reduce((sum, value, i) => sum + value * [0.2126, 0.7152, 0.0722][i], 0);
  const contrast = (one, other) => {
    const [dark, bright] = [light(one), light(other)].sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05);
  };
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const colour = rgba(getComputedStyle(node).backgroundColor);
      if (colour[3] === 255) return colour;
    }
  };
  const faint = [];
  for (const node of document.querySelectorAll("body *")) {
    if (!node.checkVisibility() || node.closest("svg, noscript")) continue;
    const style = getComputedStyle(node);
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    const label = node.id || node.className || node.tagName;
    if (own) faint.push([`text of ${label}`, contrast(rgba(style.color), ground(node)), 4.5]);
    if (!node.matches("input:not([type=radio], [type=range], [type=file]), select, textarea")) continue;
    faint.push([`border of ${label}`, contrast(rgba(style.borderTopColor), ground(node.parentElement)), 3]);
    const hint = getComputedStyle(node, "::placeholder").color;
    if (node.placeholder) faint.push([`placeholder of ${label}`, contrast(rgba(hint), ground(node)), 4.5]);
  }
  return [faint.length, faint.filter(([, found, least]) => !(found >= least))];
}"""

FOCUSED = """() => {
  const node = document.activeElement;
  const radio = node.matches("[name=mode], [name=share]") ? node.nextElementSibling : node;
  const shown = node.matches("[name=voice]") ? node.closest(".voice") : radio;
  const { outlineStyle, outlineWidth } = getComputedStyle(shown);
  return [node.id || node.textContent.trim(), outlineStyle !== "none" && parseFloat(outlineWidth) >= 2];
}"""

# Left edge, right edge and height of what can be pressed; links in running text may be as high as the text.
TARGETS = """() => [...document.querySelectorAll("button, select, input:not([type=radio], .unseen), .button, summary")]
  .filter((node) => node.checkVisibility() && !node.matches(".link"))
  .map((node) => [node.id || node.textContent, node.getBoundingClientRect()])
  .map(([name, box]) => [name, box.left, box.right, box.height])"""


# Elements that stick out of their card; the main buttons of a phone do not lie in it.
ESCAPED = """() => [...document.querySelectorAll(".card *")]
  .filter((node) => node.checkVisibility() && !node.closest(".snippet, .unseen, .compose .actions"))
  .filter((node) => node.getBoundingClientRect().right > node.closest(".card").getBoundingClientRect().right)
  .map((node) => node.id || node.outerHTML.slice(0, 80))"""


@pytest.fixture(scope="module")
def one(browser: Any) -> Iterator[Visit]:
    """A checkpoint that clones shows the most fields."""
    with visit(browser, card=BASE_CARD) as one:
        one.page.click("summary")
        yield one


def test_every_control_has_a_name_and_valid_references(one: Visit) -> None:
    assert one.page.evaluate(NAMELESS) == []
    assert one.page.evaluate(BROKEN_REFERENCES) == []
    assert one.page.locator("h1").count() == 1
    live = one.page.locator("[aria-live=polite], [role=alert], [role=status], [role=log]")
    assert live.count() >= 4
    assert one.page.evaluate("() => document.documentElement.lang") == "en"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_fields_have_enough_contrast(one: Visit, theme: Any) -> None:
    one.page.emulate_media(color_scheme=theme, reduced_motion="reduce")  # no color transitions
    one.page.evaluate("() => { document.getElementById('notice').hidden = false; }")
    one.page.evaluate("() => { document.getElementById('notice-text').textContent = 'An error'; }")
    checked, faint = one.page.evaluate(FAINT)
    one.page.click("#notice-close")
    assert checked > 40 and faint == []


def test_everything_fits_on_a_phone_and_can_be_pressed(one: Visit) -> None:
    one.page.set_viewport_size({"width": 360, "height": 740})
    assert one.page.evaluate("() => document.documentElement.scrollWidth") <= 360
    targets = one.page.evaluate(TARGETS)
    assert len(targets) > 15
    assert [name for name, left, right, _ in targets if left < 0 or right > 360] == []
    assert [name for name, _, _, height in targets if height < 24] == []
    assert one.page.locator("#speak").bounding_box()["y"] > 600  # type: ignore[index]  # at the bottom, without scrolling
    one.page.set_viewport_size({"width": 1280, "height": 840})


@pytest.mark.parametrize("mode", ["whole", "live", "compare"])
def test_nothing_scrolls_sideways_on_the_narrowest_screen(one: Visit, tmp_path: Path, mode: str) -> None:
    """WCAG 1.4.10: 320 px, which is also 1280 px at a zoom of 400 %."""
    one.page.set_viewport_size({"width": 320, "height": 640})
    one.page.set_input_files("#clip-file", clip_file(tmp_path))
    one.choose_mode(mode)
    for form in ("link", "curl", "python", "javascript"):
        one.page.check(f"[name=share][value={form}]")
        assert one.page.evaluate("() => document.documentElement.scrollWidth") <= 320
    assert [name for name, left, right, _ in one.page.evaluate(TARGETS) if left < 0 or right > 320] == []
    assert one.page.evaluate(ESCAPED) == []
    one.page.click("#clip-clear")
    one.choose_mode("whole")
    one.page.set_viewport_size({"width": 1280, "height": 840})


def test_a_phone_shows_the_voices_before_the_figures(one: Visit) -> None:
    one.page.set_viewport_size({"width": 390, "height": 844})
    cards = ("text", "voices", "clip-card", "listen-card", "share-text", "history-title")
    tops = [one.page.locator(f"#{name}").bounding_box()["y"] for name in cards]  # type: ignore[index]
    one.page.set_viewport_size({"width": 1280, "height": 840})
    assert tops == sorted(tops) and tops[1] < 844 - 100


def test_the_theme_follows_the_system_until_it_is_chosen(one: Visit) -> None:
    def ground() -> Any:
        return one.page.evaluate("() => getComputedStyle(document.body).backgroundColor")

    one.page.emulate_media(color_scheme="light")
    light = ground()
    one.page.emulate_media(color_scheme="dark")
    dark = ground()
    assert light != dark
    one.page.click("#theme-toggle")
    assert ground() == light
    one.page.reload()
    one.wait_until_loaded()
    assert ground() == light and one.page.get_attribute("#theme-toggle", "aria-pressed") == "false"
    one.page.click("#theme-toggle")
    assert ground() == dark


def test_nothing_moves_with_reduced_motion(one: Visit) -> None:
    one.page.evaluate("() => { document.getElementById('server-state').dataset.state = 'starting'; }")
    one.page.emulate_media(reduced_motion="no-preference")
    assert one.page.evaluate("() => document.getAnimations().length") > 0
    one.page.emulate_media(reduced_motion="reduce")
    assert one.page.evaluate("() => document.getAnimations().length") == 0


def test_the_keyboard_is_enough_and_focus_is_always_visible(browser: Any) -> None:
    with visit(browser) as one:
        press = one.page.keyboard.press
        seen: list[str] = []

        def tab_to(name: str) -> None:
            while not seen or seen[-1] != name:
                press("Tab")
                focused, outlined = one.page.evaluate(FOCUSED)
                assert outlined, f"focus cannot be seen on {focused}"
                assert len(seen) < 60, seen
                seen.append(focused)

        tab_to("Skip to the text")
        tab_to("text")
        press("Control+a")
        one.page.keyboard.type("Hello.")
        tab_to("voice-wren")
        press("ArrowDown")
        tab_to("seed")
        press("Control+Enter")
        one.wait_for("done")
        assert one.engine.requests[0].voice == "finch"
        assert one.stats()["samplesPlayed"] == 6 * FRAME_SAMPLES
        tab_to("Replay")
        while one.stats()["state"] != "stopped":  # a slow machine may hear the end before it presses Escape
            press("Enter")
            one.wait_for("playing")
            press("Escape")
            one.until("['stopped', 'done'].includes(window.oscineStats.state)")
        assert one.complaints == []


# --- the files themselves -------------------------------------------------------------------------------------------


def test_scripts_are_small_and_no_style_or_script_stands_in_the_page() -> None:
    for path in PLAYGROUND.iterdir():
        text = path.read_text()
        assert path.suffix != ".js" or len(text.splitlines()) < 300, path.name
        assert path.suffix != ".js" or text.startswith("// "), path.name
        if path.suffix == ".html":
            assert not re.search(r"<style|\sstyle=|\son\w+=|<script>|javascript:", text), path.name
        addresses = set(re.findall(r"https?://[^\s\"')]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not addresses, (path.name, addresses)
