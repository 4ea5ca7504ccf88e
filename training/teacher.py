"""The teacher: two voices of Kokoro-82M (kokoro_net.py), in large batches on a GPU or one by one on a CPU.

Durations of phonemes and words come from the teacher, with a resolution of 25 ms.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from kokoro_net import HOP, RATE, Kokoro
from phonemes import INNER_SPACE, UNMATCHED
from sizes import FRAME_SAMPLES, RATE_HZ
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

Samples = npt.NDArray[np.int16]
Bytes = npt.NDArray[np.uint8]

PHONE_COUNT = 178  # the teacher's alphabet; 0 is silence and punctuation
UNKNOWN_WORD = 255
LABEL_SAMPLES = 480  # a phone and a word every 20 ms
_STRESS, _SILENT = "ˈˌ", ';:,.!?—…"()“”'

# Fixed silences, so that the student can learn where speech ends.
_LEAD_S, _TAIL_S, _FADE_S = 0.04, 0.12, 0.01
_LOUDNESS = 0.09  # RMS of the speech
_PEAK = 0.95
_QUIET = 0.003  # RMS of a window at that loudness; below it is silence
_WINDOW = 120  # samples
_TEXT_BATCH = 20000  # phonemes, including padding


@dataclass(frozen=True, slots=True)
class Style:
    pitch: float = 1.0
    speed: float = 1.0


VOICES = {"wren": "af_heart", "finch": "am_michael"}
STYLES = {
    "plain": Style(), "slow": Style(speed=0.75), "fast": Style(speed=1.3), "high": Style(pitch=1.15),
    "low": Style(pitch=0.87),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sentence:
    key: str
    text: str
    phonemes: str  # as phonemes.py writes them


@dataclass(frozen=True, slots=True)
class Spoken:
    """The teacher's output, untrimmed."""

    sentence: Sentence
    samples: Samples
    durations: npt.NDArray[np.int64]  # of each id, in frames of 25 ms


@dataclass(frozen=True, slots=True)
class Utterance:
    key: str
    text: str
    samples: Samples  # 24 kHz, whole frames
    labels: Bytes  # a phone every 20 ms
    words: Bytes  # index of the word in text.split() every 20 ms, or UNKNOWN_WORD


class Teacher:
    """`folder`: kokoro.safetensors, voices.npz, config.json and the kokoro wheel, made by carry.sh."""

    def __init__(
        self, folder: Path, device: torch.device, *, half: bool = False, compiled: bool = False, batch_s: int = 600
    ) -> None:
        assert RATE == RATE_HZ, RATE
        self.device, self._batch_s = device, batch_s
        self._net: Any = Kokoro.load(folder, device, torch.float16 if half else torch.float32, compiled)
        with np.load(folder / "voices.npz") as voices:
            self._voices = {name: torch.from_numpy(voices[name]).to(device) for name in voices.files}
        self.alphabet: dict[str, int] = self._net.vocab

    @torch.inference_mode()
    def say(self, sentences: Sequence[Sentence], voice: str, style: str) -> Iterator[Spoken]:
        """Yields the sentences in any order."""
        net, how, table = self._net, STYLES[style], self._voices[VOICES.get(voice, voice)]
        ids = [net.ids(plain(sentence.phonemes)) for sentence in sentences]
        sizes = [len(one) for one in ids]
        # There is one style vector per number of phonemes.
        styles = table[[min(max(size - 3, 0), len(table) - 1) for size in sizes]]
        parts: list[list[Tensor]] = [[] for _ in ids]
        for some in _batches(sizes, _TEXT_BATCH):
            padded = pad_sequence([torch.tensor(ids[i]) for i in some], batch_first=True).to(self.device)
            out = net.text(padded, torch.tensor([sizes[i] for i in some]), styles[some], how.speed)
            for row, i in enumerate(some):
                parts[i] = [one[row, : sizes[i]] for one in out]
        frames = torch.stack([part[2].sum() for part in parts]).tolist()
        for some in _batches(frames, self._batch_s * RATE // HOP):
            columns = zip(*(parts[i] for i in some), strict=True)
            inputs = [pad_sequence(list(column), batch_first=True) for column in columns]
            audio, _, _ = net.speech(*inputs, styles[some], 1.0, how.pitch)
            made = (audio.clamp(-1, 1) * 32767).round().short().cpu().numpy()
            durations = inputs[2].cpu().numpy()
            for row, i in enumerate(some):
                yield Spoken(sentences[i], made[row, : frames[i] * HOP].copy(), durations[row, : sizes[i]].copy())


def _batches(sizes: Sequence[int], limit: int) -> Iterator[list[int]]:
    """Groups of indices with similar sizes, each within the limit after padding."""
    batch: list[int] = []
    for place in sorted(range(len(sizes)), key=lambda place: sizes[place]):
        if batch and sizes[place] * (len(batch) + 1) > limit:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def plain(phonemes: str) -> str:
    """The phonemes without our marks."""
    return phonemes.removeprefix(UNMATCHED).replace(INNER_SPACE, " ")


def symbols(phonemes: str, alphabet: dict[str, int]) -> tuple[Bytes, Bytes]:
    """Label and word of each input id, including the silences at both ends."""
    unmatched, word = phonemes.startswith(UNMATCHED), 0
    labels, words = [0], [UNKNOWN_WORD]
    for symbol in phonemes.removeprefix(UNMATCHED):
        if symbol == " ":
            word += 1
        number = alphabet.get(" " if symbol == INNER_SPACE else symbol)
        if number is None:
            continue
        if symbol in (" ", INNER_SPACE):
            # Without punctuation there is no pause: the previous sound continues.
            labels.append(labels[-1])
            words.append(words[-1])
            continue
        silent = symbol in _SILENT
        labels.append(0 if silent else number)
        words.append(UNKNOWN_WORD if silent or unmatched else min(word, UNKNOWN_WORD - 1))
    labels.append(0)
    words.append(UNKNOWN_WORD)
    # A stress mark has its own duration, which belongs to the next sound.
    marks = {alphabet[mark] for mark in _STRESS}
    for place in reversed(range(len(labels) - 1)):
        if labels[place] in marks:
            labels[place] = labels[place + 1]
    return np.array(labels, np.uint8), np.array(words, np.uint8)


def trimmed(spoken: Spoken, alphabet: dict[str, int]) -> Utterance | None:
    """Sets the loudness, trims to fixed silences, pads to whole frames. None if there is no speech."""
    sound = spoken.samples.astype(np.float32) / 32767
    windows = sound[: len(sound) // _WINDOW * _WINDOW].reshape(-1, _WINDOW)
    power = np.square(windows).mean(1)
    loud = power[power > 1e-5]  # 50 dB below a full-scale square wave, to leave out pauses
    if not len(loud):
        return None
    gain = min(_LOUDNESS / float(np.sqrt(loud.mean())), _PEAK / float(np.abs(sound).max()))
    speaking = np.flatnonzero(np.sqrt(power) * gain > _QUIET)
    begin = speaking[0] * _WINDOW - round(_LEAD_S * RATE_HZ)
    end = (speaking[-1] + 1) * _WINDOW + round(_TAIL_S * RATE_HZ)
    sound = np.pad(sound, (max(0, -begin), max(0, end - len(sound))))
    first = max(0, begin)
    sound = sound[first : first + end - begin] * gain
    ramp = np.linspace(0, 1, round(_FADE_S * RATE_HZ), dtype=np.float32)
    sound[: len(ramp)] *= ramp
    sound[-len(ramp) :] *= ramp[::-1]
    samples = np.zeros(-(-len(sound) // FRAME_SAMPLES) * FRAME_SAMPLES, np.int16)
    samples[: len(sound)] = np.round(sound * 32767)
    labels, words = symbols(spoken.sentence.phonemes, alphabet)
    assert len(labels) == len(spoken.durations), (spoken.sentence, len(labels), len(spoken.durations))
    ends = np.cumsum(spoken.durations) * HOP
    middles = begin + LABEL_SAMPLES * (np.arange(len(samples) // LABEL_SAMPLES) + 0.5)
    places = np.minimum(np.searchsorted(ends, middles, side="right"), len(labels) - 1)
    return Utterance(spoken.sentence.key, spoken.sentence.text, samples, labels[places], words[places])


def read_sentences(path: Path) -> list[Sentence]:
    """Reads the output of phonemes.py, optionally as .xz."""
    content = path.read_bytes()
    text = (lzma.decompress(content) if path.suffix == ".xz" else content).decode()
    rows = [line.split("\t") for line in text.splitlines()]
    return [Sentence(f"s{number:06d}", text, said) for number, (text, said) in enumerate(rows)]
