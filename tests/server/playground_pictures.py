"""Pictures of the playground for the documentation: `python -m tests.server.playground_pictures docs/images`."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tests.server.browsing import Visit, chromium, visit
from tests.server.scripted_engine import CARD, RATE_HZ, ScriptedEngine

from oscine.types import AudioChunk, SpeechRequest

NAMED = replace(
    CARD,
    name="scripted engine",  # whose figures are nobody's: no picture may pass for a measurement
    speakers=("vivian", "serena", "uncle_fu", "dylan", "eric", "ryan", "aiden", "ono_anna", "sohee"),
    languages=("chinese", "english", "german", "french", "spanish", "japanese", "korean", "italian", "russian"),
)
SAID = "Turn left after the bridge."
# The page uses the system's font; where the pictures are made, that may be a plain one.
FONT = "body { font-family: Inter, system-ui, 'WenQuanYi Micro Hei', sans-serif !important; }"
LARGEST_BYTES = 200_000


def syllables(first_sample: int, count: int) -> bytes:
    """Something with the outline of speech: syllables of changing length and force, and pauses between phrases."""
    t = (first_sample + np.arange(count)) / RATE_HZ
    force = np.abs(np.sin(2 * np.pi * 2.3 * t + 1.4 * np.sin(2 * np.pi * 0.37 * t))) ** 1.6
    phrase = np.clip(2.2 * np.sin(2 * np.pi * 0.31 * t + 0.5) + 1.35, 0, 1) * (
        0.55 + 0.45 * np.sin(2 * np.pi * 0.83 * t)
    )
    voice = sum(np.sin(2 * np.pi * 140 * k * t) / k for k in range(1, 9))
    return np.rint(9000 * force * np.abs(phrase) * voice).astype("<i2").tobytes()


class SpeechLike(ScriptedEngine):
    def submit(self, request: SpeechRequest, deliver: Callable[[AudioChunk], None], *, text_open: bool = False) -> str:
        def sounding(chunk: AudioChunk) -> None:
            deliver(replace(chunk, pcm=syllables(chunk.first_sample, len(chunk.pcm) // 2)))

        return super().submit(request, sounding, text_open=text_open)


def fill(one: Visit) -> None:
    """One utterance in the history, another that is being heard."""
    one.page.add_style_tag(content=FONT)
    one.speak(SAID)
    one.wait_for("done")
    one.page.click("#examples button")
    one.page.fill("#instructions", "Warm and unhurried")
    one.page.click("#speak")
    one.until("window.oscineStats.samplesPlayed > 3.2 * 24000")
    one.page.mouse.move(0, 0)
    one.page.evaluate("() => scrollTo(0, 0)")


def main(folder: Path) -> None:
    wide, narrow = {"width": 1200, "height": 800}, {"width": 360, "height": 760}
    pictures: dict[str, dict[str, Any]] = {
        "light": {"color_scheme": "light", "viewport": wide},
        "dark": {"color_scheme": "dark", "viewport": wide},
        "phone": {"color_scheme": "light", "viewport": narrow},
    }
    folder.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for name, options in pictures.items():
            engine = SpeechLike(frame_s=0.005)
            with visit(browser, engine, NAMED, bypass_csp=True, device_scale_factor=1.5, **options) as one:
                fill(one)
                path = folder / f"playground-{name}.png"
                one.page.screenshot(path=path)
                assert path.stat().st_size < LARGEST_BYTES, (path.name, path.stat().st_size)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
