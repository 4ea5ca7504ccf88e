"""Pictures of the playground for the documentation, with the demo voice speaking:
`python -m tests.server.playground_pictures docs/images`."""

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    scratch = tempfile.TemporaryDirectory()
    server = ServerProcess(None, Path(scratch.name))
    try:
        url = server.wait_ready()
        with chromium() as browser:
            for name, options in PICTURES.items():
                page = browser.new_page(bypass_csp=True, device_scale_factor=1.5, **options)
                page.goto(url)
                page.add_style_tag(content=FONT)
                until(page, "document.getElementById('model-name').textContent !== ''")
                (compare if name == "compare" else speak)(page)
                page.mouse.move(0, 0)
                page.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")
                path = folder / f"playground-{name}.png"
                page.screenshot(path=path)
                page.close()
                assert path.stat().st_size < MAX_BYTES, (path.name, path.stat().st_size)
    finally:
        server.close()
        scratch.cleanup()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
