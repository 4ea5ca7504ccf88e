"""Makes the recording that calibrates aligners: src/oscine/align/reference.ogg and .json, with Festival's voice slt.

python tools/alignment_reference.py
"""

from __future__ import annotations

import json
from pathlib import Path

import soundfile

from benchmarks.labelled_speech import synthesize
from oscine.align.whisper import RATE_HZ
from oscine.audio.clips import resample

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "src" / "oscine" / "align"
# benchmarks/alignment.py measures with other sentences.
TEXTS = (
    "A quick fox ran past the old barn before anyone could open the gate.",
    "Please bring two cups of coffee and a glass of cold water to the table.",
    "They talked about the weather, the garden, and the price of bread.",
    "My brother never forgets a name, but he cannot remember a number.",
    "When the bell rings at noon, the whole village stops for lunch.",
    "She kept the letter in a drawer under the window for twenty years.",
)


def main() -> None:
    recordings = []
    with soundfile.SoundFile(FOLDER / "reference.ogg", "w", RATE_HZ, 1, format="OGG", subtype="VORBIS") as file:
        start = 0
        for speech in synthesize("festival-slt", TEXTS):
            samples = resample(speech.clip, RATE_HZ).samples
            file.write(samples)
            times = [[round(time, 3) for time in pair] for pair in zip(speech.starts_s, speech.ends_s, strict=True)]
            recordings.append({"text": speech.text, "first": start, "last": start + len(samples), "times": times})
            start += len(samples)
    assert len(recordings) == len(TEXTS), len(recordings)
    (FOLDER / "reference.json").write_text(json.dumps(recordings, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
