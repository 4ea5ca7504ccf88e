"""Files that pasted programs leave behind, read with the tools that people use."""

import wave
from pathlib import Path

import soundfile


def seconds(path: Path) -> float:
    """The duration. Fails if a reader would be told another one than that of the samples in the file."""
    samples, rate = soundfile.read(path)
    held_s = len(samples) / rate
    stated_s = soundfile.info(path).duration
    assert abs(stated_s - held_s) < 0.1, f"{path.name} states {stated_s} s and holds {held_s} s"
    if path.suffix == ".wav":
        with wave.open(str(path)) as file:
            assert file.getnframes() == len(samples), f"{path.name} states {file.getnframes()} frames"
    return held_s
