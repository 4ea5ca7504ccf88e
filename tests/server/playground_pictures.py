"""Pictures of the playground for the documentation, with the demo voice speaking, and an animation of a barge-in:
`python -m tests.server.playground_pictures docs/images`."""

import io
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from benchmarks.server_process import ServerProcess
from tests.server.browsing import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Page

SHORT_TEXT = "Turn left after the bridge."
# The page uses the system's font, which may be a plain one on the machine that takes the pictures.
FONT = "body { font-family: Inter, system-ui, 'WenQuanYi Micro Hei', sans-serif !important; }"
MAX_BYTES = 250_000
WIDE, NARROW = {"width": 1200, "height": 940}, {"width": 390, "height": 844}
PICTURES: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light", "viewport": WIDE},
    "dark": {"color_scheme": "dark", "viewport": WIDE},
    "phone": {"color_scheme": "light", "viewport": NARROW},
    "compare": {"color_scheme": "light", "viewport": WIDE},
}
ANIMATION = {"color_scheme": "light", "viewport": {"width": 1000, "height": 620}}
TEXT_AND_SOUND = {"x": 0, "y": 0, "width": 626, "height": 620}
ANSWER = "The train to the coast leaves at nine, and a ticket costs twelve pounds. "
NEXT_ANSWER = "The bus leaves at ten. "
MAX_ANIMATION_BYTES = 400_000


def until(page: "Page", condition: str) -> None:
    page.wait_for_function(f"() => {condition}")


def speak(page: "Page") -> None:
    """One utterance in the history, another that is playing."""
    example = page.input_value("#text")
    page.fill("#text", SHORT_TEXT)
    page.click("#speak")
    until(page, "window.oscineStats.state === 'done'")
    page.fill("#text", example)
    page.click("#instruction-presets button")
    page.click("#speak")
    until(page, "window.oscineStats.samplesPlayed > 3.2 * 24000")


def compare(page: "Page") -> None:
    page.fill("#text", SHORT_TEXT)
    page.check("[name=mode][value=compare]")
    page.check("[name=share][value=curl]")
    page.click("#speak")
    until(page, "window.oscineStats.compared[1].samplesPlayed > 0.8 * 24000")


def barge_in(page: "Page") -> list[tuple[bytes, int]]:
    """Pictures and how long each is shown, in ms: words arrive and are spoken, Escape stops them, others follow."""
    frames: list[tuple[bytes, int]] = []

    def show(duration_ms: int) -> None:
        assert page.evaluate("window.oscineStats.underruns") == 0, "playback had a gap: this machine is busy, try again"
        frames.append((page.screenshot(clip=TEXT_AND_SOUND), duration_ms))

    def type_words(text: str) -> None:
        for word in text.split():
            page.keyboard.insert_text(f"{word} ")
            show(200)

    page.check("[name=mode][value=live]")
    page.focus("#live-line")
    show(900)
    type_words(ANSWER)
    for played_s in (0.8, 1.2, 1.6):
        until(page, f"window.oscineStats.samplesPlayed > {played_s} * 24000")
        show(400)
    page.keyboard.press("Escape")
    page.wait_for_selector(".typed[data-state=cancelled] s")
    show(2500)
    type_words(NEXT_ANSWER)
    page.keyboard.press("Enter")
    until(page, "window.oscineStats.state === 'done'")
    show(2500)
    return frames


def write_animation(path: Path, frames: list[tuple[bytes, int]]) -> None:
    images = [Image.open(io.BytesIO(png)).convert("RGB") for png, _ in frames]
    palette = images[-1].quantize(64)  # one for all, so that only changes are stored
    first, *others = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    durations_ms = [duration_ms for _, duration_ms in frames]
    first.save(path, save_all=True, append_images=others, duration=durations_ms, loop=0, optimize=True)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser:
        server = ServerProcess(None, Path(scratch))

        def open_page(**options: Any) -> "Page":
            page = browser.new_page(bypass_csp=True, **options)
            page.goto(server.wait_ready())
            page.add_style_tag(content=FONT)
            until(page, "document.getElementById('model-name').textContent !== ''")
            return page

        try:
            for name, options in PICTURES.items():
                page = open_page(device_scale_factor=1.5, **options)
                (compare if name == "compare" else speak)(page)
                page.mouse.move(0, 0)
                page.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")
                path = folder / f"playground-{name}.png"
                page.screenshot(path=path)
                page.close()
                assert path.stat().st_size < MAX_BYTES, (path.name, path.stat().st_size)
            path = folder / "barge-in.gif"
            write_animation(path, barge_in(open_page(**ANIMATION)))
            assert path.stat().st_size < MAX_ANIMATION_BYTES, (path.name, path.stat().st_size)
        finally:
            server.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
