"""Takes the pictures of the playground in docs/images, with the demo voice and the Chromium of the system.

    python tools/playground_pictures.py [--aligner FOLDER] [--out docs/images]

With a Whisper folder for the aligner, the pictures show the words while they are heard. They were
taken with Inter as the system's font (Debian: fonts-inter).
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.server_process import ServerProcess

_WIDE: ViewportSize = {"width": 1200, "height": 940}
_PHONE: ViewportSize = {"width": 390, "height": 844}
_PLAYED_S = 3.0  # until the picture is taken
_ARGUMENTS = ("--no-sandbox", "--autoplay-policy=no-user-gesture-required", "--mute-audio")


def open_page(browser: Browser, url: str, *, phone: bool = False, dark: bool = False) -> Page:
    context = browser.new_context(
        viewport=_PHONE if phone else _WIDE, device_scale_factor=1.5, color_scheme="dark" if dark else "light"
    )
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(url)
    page.wait_for_function("() => document.getElementById('model-name').textContent !== ''")
    return page


def speak_and_wait(page: Page, text: str) -> None:
    page.fill("#text", text)
    page.click("#speak")
    page.wait_for_function("() => window.oscineStats.state === 'done'")


def take_speaking(page: Page, path: Path) -> None:
    """A finished take in the history, and the prefilled text while it is heard."""
    prefilled = page.input_value("#text")
    speak_and_wait(page, "Turn left after the bridge.")
    page.fill("#text", prefilled)
    page.get_by_text("Slow", exact=True).click()
    page.click("#speak")
    page.wait_for_function(f"() => Number(document.getElementById('figure-played').value) > {_PLAYED_S}")
    page.evaluate("() => scrollTo(0, 0)")
    page.screenshot(path=path)
    page.context.close()  # the rest of its speech would take the server's time from the next picture


def take_comparison(page: Page, path: Path) -> None:
    speak_and_wait(page, "Turn left after the bridge.")
    page.check("[name=mode][value=compare]")
    page.check("[name=share][value=curl]")
    page.click("#speak")
    page.wait_for_function("() => document.getElementById('compare-state-b').textContent.includes('seed')")
    page.evaluate("() => scrollTo(0, 0)")
    page.screenshot(path=path)
    page.context.close()  # the rest of its speech would take the server's time from the next picture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--aligner", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    options = parser.parse_args()
    more = [] if options.aligner is None else ["--aligner", str(options.aligner)]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = ServerProcess(None, Path(folder), *more)
        try:
            url = server.wait_ready()
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=_ARGUMENTS)
            for name, choice in {"light": {}, "dark": {"dark": True}, "phone": {"phone": True}}.items():
                take_speaking(open_page(browser, url, **choice), options.out / f"playground-{name}.png")
            take_comparison(open_page(browser, url), options.out / "playground-compare.png")
            browser.close()
        finally:
            server.close()


if __name__ == "__main__":
    main()
