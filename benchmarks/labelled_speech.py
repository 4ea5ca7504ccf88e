"""Speech with known word times: Festival's voices and espeak-ng report when they begin each word.

On Debian: apt-get install festival festvox-us-slt-hts festvox-kallpc16k espeak-ng
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from oscine.audio.clips import Clip, read_clip

VOICES = {"festival-slt": "cmu_us_slt_arctic_hts", "festival-kal": "kal_diphone"}
ESPEAK = "espeak-ng"
_SCHEME = """
(voice_{voice})
(define (word-times utterance file)
  (let ((out (fopen file "w")))
    (mapcar (lambda (word) (format out "%f %f\\n" (item.feat word "word_start") (item.feat word "word_end")))
            (utt.relation.items utterance 'Word))
    (fclose out)))
"""


@dataclass(frozen=True, slots=True, eq=False)
class LabelledSpeech:
    """The words of a text in its audio. espeak-ng reports only starts."""

    text: str
    clip: Clip
    starts_s: list[float]
    ends_s: list[float]


def synthesize(voice: str, texts: Sequence[str]) -> list[LabelledSpeech]:
    """Sentences whose words the voice splits as `str.split` does."""
    spoken = _espeak(texts) if voice == ESPEAK else _festival(VOICES[voice], texts)
    return [speech for speech in spoken if len(speech.starts_s) == len(speech.text.split())]


def version(voice: str) -> str:
    command = [ESPEAK, "--version"] if voice == ESPEAK else ["festival", "--version"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return re.search(r"\d+\.\d+(?:\.\d+)?", shown)[0]  # type: ignore[index]


def _festival(voice: str, texts: Sequence[str]) -> Iterator[LabelledSpeech]:
    with tempfile.TemporaryDirectory() as folder:
        script = [_SCHEME.format(voice=voice)]
        for number, text in enumerate(texts):
            assert '"' not in text and "\\" not in text, text
            script.append(f'(set! spoken (SynthText "{text}"))')
            script.append(f'(utt.save.wave spoken "{folder}/{number}.wav" \'riff)')
            script.append(f'(word-times spoken "{folder}/{number}.times")')
        (Path(folder) / "script.scm").write_text("\n".join(script), encoding="utf-8")
        subprocess.run(["festival", "-b", f"{folder}/script.scm"], check=True, capture_output=True)
        for number, text in enumerate(texts):
            lines = (Path(folder) / f"{number}.times").read_text().splitlines()
            times = [tuple(map(float, line.split())) for line in lines]
            clip = read_clip(Path(folder) / f"{number}.wav")
            yield LabelledSpeech(text, clip, [start_s for start_s, _ in times], [end_s for _, end_s in times])


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("id", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position_ms", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("name", ctypes.c_char * 8),
    )


_END, _WORD = 0, 1  # kinds of events
_SYNCHRONOUS, _UTF8 = 2, 1


def _espeak(texts: Sequence[str]) -> Iterator[LabelledSpeech]:
    library = ctypes.CDLL("libespeak-ng.so.1")
    rate_hz = library.espeak_Initialize(_SYNCHRONOUS, 0, None, 0)
    assert rate_hz > 0, rate_hz
    pcm, starts_s = bytearray(), []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(_Event))  # type: ignore[untyped-decorator]
    def receive(samples: int | None, count: int, events: ctypes.Array[_Event]) -> int:
        if samples and count:
            pcm.extend(ctypes.string_at(samples, 2 * count))
        index = 0
        while events[index].type != _END:
            if events[index].type == _WORD:
                starts_s.append(events[index].audio_position_ms / 1000)
            index += 1
        return 0

    library.espeak_SetSynthCallback(receive)
    library.espeak_SetVoiceByName(b"en-us")
    for text in texts:
        pcm.clear()
        starts_s.clear()
        encoded = text.encode()
        library.espeak_Synth(encoded, len(encoded) + 1, 0, 1, 0, _UTF8, None, None)
        samples = np.frombuffer(bytes(pcm), "<i2").astype(np.float32) / np.float32(32768)
        yield LabelledSpeech(text, Clip(samples, rate_hz), list(starts_s), [])
