"""The playground in Chromium, driven by Playwright, on a real server. Without a browser the tests are skipped, or fail
with OSCINE_BROWSER=required."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fastapi import FastAPI

from oscine.audio.clips import wav_header
from oscine.config import ServerConfig
from oscine.server.app import build_app
from oscine.types import ModelCard
from tests.server.scripted_engine import CARD, RATE_HZ, ScriptedEngine
from tests.server.serving import serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PLAIN_HOST = "plain.test"  # this machine, under a name that browsers do not trust without https
_ARGUMENTS = (
    "--no-sandbox",
    "--autoplay-policy=no-user-gesture-required",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
    f"--host-resolver-rules=MAP {PLAIN_HOST} 127.0.0.1",
)
STORED = """async () => {
  const { TakeStore } = await import("./playground/store.js");
  return (await new TakeStore().all()).map(({ text, request }) => ({ text, request }));
}"""
# Empties the store and returns when it is empty.
CLEAR_HISTORY = """() => new Promise((resolve, reject) => {
  const opening = indexedDB.open("oscine", 1);
  opening.onupgradeneeded = () => opening.result.createObjectStore("takes", { keyPath: "id", autoIncrement: true });
  opening.onerror = reject;
  opening.onsuccess = () => {
    const clearing = opening.result.transaction("takes", "readwrite");
    clearing.objectStore("takes").clear();
    clearing.oncomplete = () => { opening.result.close(); resolve(); };
  };
})"""


def _missing(what: str) -> None:
    message = f"{what}; apt-get install chromium, pip install playwright"
    if os.environ.get("OSCINE_BROWSER") == "required":
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    path = os.environ.get("OSCINE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        _missing("there is no chromium on the path")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _missing("the package playwright is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        yield browser
        browser.close()


@dataclass
class Visit:
    """One page on its own server, with the errors and warnings of its console."""

    page: Page
    engine: ScriptedEngine
    url: str
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = self.page.evaluate("window.oscineStats")
        return stats

    def until(self, condition: str) -> None:
        self.page.wait_for_function(f"() => {condition}")  # a function: the page's policy forbids eval

    def wait_for(self, state: str) -> None:
        self.until(f"window.oscineStats.state === '{state}'")

    def wait_until_loaded(self) -> None:
        self.until("document.getElementById('model-name').textContent !== ''")

    def choose_voice(self, name: str) -> None:
        self.page.check(f"#voices input[value='{name}']")

    def choose_mode(self, name: str) -> None:
        self.page.check(f"[name=mode][value={name}]")

    def snippet(self, form: str) -> str:
        """The link or the code that the page offers."""
        self.page.check(f"[name=share][value={form}]")
        return self.page.text_content("#share-text") or ""

    def stored_texts(self) -> list[str]:
        """The history as it is stored, oldest first."""
        return [take["text"] for take in self.stored()]

    def stored(self) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = self.page.evaluate(STORED)
        return records

    def clear_history(self) -> None:
        self.page.evaluate(CLEAR_HISTORY)

    def speak(self, text: str) -> None:
        self.page.fill("#text", text)
        self.page.click("#speak")

    def listen(self) -> None:
        """Records the page's errors and requests from the start."""
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on(
            "console", lambda line: self.complaints.append(line.text) if line.type in ("error", "warning") else None
        )
        self.page.on("request", lambda request: self.requests.append(request.url))

    def expect(self, complaint: str) -> None:
        """Removes an expected message: browsers log every failed request."""
        found = [text for text in self.complaints if complaint in text]
        assert found, self.complaints
        self.complaints.remove(found[0])

    def check(self) -> None:
        """Fails on unexpected messages, and on requests to other servers: the page works offline."""
        complaints, self.complaints = self.complaints, []
        assert not complaints, complaints
        assert all(url.startswith((self.url, "data:", "blob:")) for url in self.requests), self.requests


def clip_file(folder: Path) -> Path:
    tone = np.rint(8000 * np.sin(np.arange(RATE_HZ) / 20)).astype("<i2").tobytes()
    path = folder / "anna's clip.wav"
    path.write_bytes(wav_header(RATE_HZ, len(tone) // 2) + tone)
    return path


@contextlib.contextmanager
def visit(
    browser: Browser,
    engine: ScriptedEngine | None = None,
    card: ModelCard = CARD,
    config: ServerConfig | None = None,
    host: str = "127.0.0.1",
    ready: bool = True,
    app: FastAPI | None = None,
    **context: Any,
) -> Iterator[Visit]:
    """An open page; with `ready`, its voices are listed. `app` serves the engine and others."""
    engine = engine or ScriptedEngine(frame_s=0.005)
    with serving(app or build_app(engine, card, config)) as url:
        url = url.replace("127.0.0.1", host)
        opened = browser.new_context(**{"viewport": {"width": 1280, "height": 840}, **context})
        opened.set_default_timeout(600_000)  # only a page that hangs takes so long
        one = Visit(opened.new_page(), engine, url)
        one.listen()
        one.page.goto(url)
        if ready:
            one.wait_until_loaded()
        try:
            yield one
        finally:
            opened.close()
            engine.stop()
