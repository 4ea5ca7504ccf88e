"""Records the samples of docs/demo_voice.md: samples.py [--model demo] [--suffix=-before] [--out docs/samples]"""

from __future__ import annotations

import argparse
from pathlib import Path

import paths
from sizes import SPEAKERS

from oscine import Oscine

# Of texts/heldout.txt.
_TEXTS = (
    "Could you remind me to water the plants before we leave?",
    "The train to Chicago leaves from platform seven.",
    "Thank you for calling, and have a pleasant afternoon.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--suffix", default="", help="of the file names")
    parser.add_argument("--out", type=Path, default=paths.ROOT / "docs" / "samples")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with Oscine(options.model, device="cpu") as tts:
        for voice in SPEAKERS:
            for number, text in enumerate(_TEXTS, 1):
                speech = tts.speak(text, voice=voice, seed=number)
                speech.save(options.out / f"{voice}-{number}{options.suffix}.opus")


if __name__ == "__main__":
    main()
