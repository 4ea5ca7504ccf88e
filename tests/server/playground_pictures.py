"""Pictures of the playground for the documentation, with the demo voice speaking:
`PYTHONPATH=tools python -m tests.server.playground_pictures docs/images`."""

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.server_process import ServerProcess
from tests.server.browsing import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Page

SAID = "Turn left after the bridge."
# The page uses the system's font; where the pictures are made, that may be a plain one.
FONT = "body { font-family: Inter, system-ui, 'WenQuanYi Micro Hei', sans-serif !important; }"
LARGEST_BYTES = 200_000


def fill(page: "Page") -> None:
    """One utterance in the history, another that is being heard."""

    def until(condition: str) -> None:
        page.wait_for_function(f"() => {condition}")

    page.add_style_tag(content=FONT)
    until("document.getElementById('model-name').textContent !== ''")
    page.fill("#text", SAID)
    page.click("#speak")
    until("window.oscineStats.state === 'done'")
    page.click("#examples button")
    page.fill("#instructions", "Speak slowly.")
    page.click("#speak")
    until("window.oscineStats.samplesPlayed > 3.2 * 24000")
    page.mouse.move(0, 0)
    page.evaluate("() => scrollTo(0, 0)")


def main(folder: Path) -> None:
    wide, narrow = {"width": 1200, "height": 800}, {"width": 360, "height": 760}
    pictures: dict[str, dict[str, Any]] = {
        "light": {"color_scheme": "light", "viewport": wide},
        "dark": {"color_scheme": "dark", "viewport": wide},
        "phone": {"color_scheme": "light", "viewport": narrow},
    }
    folder.mkdir(parents=True, exist_ok=True)
    scratch = tempfile.TemporaryDirectory()
    server = ServerProcess(None, Path(scratch.name))
    try:
        url = server.wait_ready()
        with chromium() as browser:
            for name, options in pictures.items():
                page = browser.new_page(bypass_csp=True, device_scale_factor=1.5, **options)
                page.goto(url)
                fill(page)
                path = folder / f"playground-{name}.png"
                page.screenshot(path=path)
                page.close()
                assert path.stat().st_size < LARGEST_BYTES, (path.name, path.stat().st_size)
    finally:
        server.close()
        scratch.cleanup()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
