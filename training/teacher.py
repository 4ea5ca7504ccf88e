"""The teacher: two voices of Kokoro-82M (kokoro_net.py), in large batches on a GPU or one by one on a CPU.

Everything that a code describes comes from the teacher: the durations of phonemes and words, with a resolution of
25 ms, and the curves of pitch and energy.
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
from codes import FRAME_STEPS, SLOTS, describe, phone_number
from kokoro_net import CYCLE, HOP, RATE, Kokoro
from phonemes import INNER_SPACE, UNMATCHED
from pitch import VOICED_HZ, LockedPitch, lock
from sizes import FRAME_SAMPLES, RATE_HZ, SPEAKERS
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

Samples = npt.NDArray[np.int16]
Bytes = npt.NDArray[np.uint8]

PHONE_COUNT = 178  # the teacher's alphabet; 0 is silence and punctuation
UNKNOWN_WORD = 255
LABEL_SAMPLES = 480  # a phone and a word every 20 ms
STRESS, _SILENT = "ˈˌ", ';:,.!?—…"()“”'

# Fixed silences, so that the student can learn where speech ends.
_LEAD_S, _TAIL_S, _FADE_S = 0.04, 0.12, 0.01
_AUDIBLE = -3.0  # energy
_EARLY_SAMPLES = 720  # the teacher begins a phone before its own boundary; a whole number of steps of codes.py
_TEXT_BATCH = 20000  # phonemes, including padding
_STYLE_ROW = 100  # of the table of a voice, for the timbre: one for all sentences


@dataclass(frozen=True, slots=True)
class Style:
    pitch: float = 1.0
    speed: float = 1.0


VOICES = {"wren": "af_heart", "finch": "am_michael"}
_GAINS = {"wren": 1.6, "finch": 1.8}  # to an RMS of speech near 0.09
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
class Utterance:
    key: str
    text: str
    codes: Bytes  # [frames, 16]
    labels: Bytes  # a phone every 20 ms
    words: Bytes  # index of the word in text.split() every 20 ms, or UNKNOWN_WORD
    samples: Samples | None  # 24 kHz; None if only codes were wanted


@dataclass(frozen=True, slots=True)
class Curves:
    """The curves of a batch, at the teacher's resolution, with the first sample and the number of frames of each
    sentence."""

    f0: Tensor
    energy: Tensor
    valid: Any
    pitch: LockedPitch
    first: Tensor
    frames: Tensor


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
    def say(
        self, sentences: Sequence[Sentence], voice: str, style: str, *, sounding: bool = True
    ) -> Iterator[Utterance]:
        """Yields the sentences in any order, without those in which nothing is audible."""
        net, how, table = self._net, STYLES[style], self._voices[VOICES.get(voice, voice)]
        ids = [net.ids(plain(sentence.phonemes)) for sentence in sentences]
        sizes = [len(one) for one in ids]
        # There is one style vector per number of phonemes: the first half is the timbre, the second the prosody.
        styles = table[[min(max(size - 3, 0), len(table) - 1) for size in sizes]].clone()
        styles[:, :128] = table[_STYLE_ROW, :128]
        parts: list[list[Tensor]] = [[] for _ in ids]
        for some in _batches(sizes, _TEXT_BATCH):
            padded = pad_sequence([torch.tensor(ids[i]) for i in some], batch_first=True).to(self.device)
            out = net.text(padded, torch.tensor([sizes[i] for i in some]), styles[some], how.speed)
            for row, i in enumerate(some):
                parts[i] = [one[row, : sizes[i]] for one in out]
        frames = torch.stack([part[2].sum() for part in parts]).tolist()
        for some in _batches(frames, self._batch_s * RATE // HOP):
            columns = zip(*(parts[i] for i in some), strict=True)
            prosody, content, durations = (pad_sequence(list(column), batch_first=True) for column in columns)
            curves = _framed(*net.curves(prosody, durations, styles[some], how.pitch))
            audio = None
            if sounding:
                phase = curves.pitch.phase(curves.f0.shape[1] * CYCLE)
                audio = net.speech(content, durations, styles[some], curves.f0, curves.energy, curves.valid, phase)
            rows = _Rows(curves, durations, audio, _GAINS.get(voice, 1.7), SPEAKERS.get(voice, len(SPEAKERS)))
            for row, i in enumerate(some):
                if rows.frames[row]:
                    yield rows.utterance(row, sentences[i], self.alphabet)


def _framed(f0: Tensor, energy: Tensor, valid: Any) -> Curves:
    """Decides where the frames of each sentence are: from shortly before it is audible until shortly after. The first
    begins where a phone can begin, see codes.py."""
    count = f0.shape[1]
    place = torch.arange(count, device=f0.device)
    audible = (energy > _AUDIBLE) & (place < 2 * valid.frames[:, None])
    begin = torch.where(audible, place, count).amin(1) * CYCLE - round(_LEAD_S * RATE_HZ)
    end = (torch.where(audible, place, -1).amax(1) + 1) * CYCLE + round(_TAIL_S * RATE_HZ)
    first = begin.clamp(min=0) // HOP * HOP
    frames = (-(-(end - first) // FRAME_SAMPLES)).clamp(min=0) * audible.any(1)
    return Curves(f0, energy, valid, lock(f0, first, max(1, int(frames.max()))), first, frames)


class _Rows:
    """A batch on the host, from which utterances are cut."""

    def __init__(self, curves: Curves, durations: Tensor, audio: Tensor | None, gain: float, voice: int) -> None:
        self._voice = voice
        self._first, self._durations = curves.first.tolist(), durations.cpu().numpy()
        self.frames: list[int] = curves.frames.tolist()
        self._lengths: list[int] = (curves.valid.frames * HOP).tolist()
        self._quarters, self._bends = curves.pitch.quarters.cpu().numpy(), curves.pitch.bends.cpu().numpy()
        self._f0, self._energy = curves.f0.float().cpu().numpy(), curves.energy.float().cpu().numpy()
        self._audio = None if audio is None else (audio * gain).clamp(-1, 1).mul(32767).round().short().cpu().numpy()

    def utterance(self, row: int, sentence: Sentence, alphabet: dict[str, int]) -> Utterance:
        frames, first, length = self.frames[row], self._first[row], self._lengths[row]
        said = symbols(sentence.phonemes, alphabet)
        ends = np.cumsum(self._durations[row][: len(said.labels)]) * HOP
        assert len(ends) == len(said.labels) and ends[-1] == length, sentence

        def spoken_at(samples: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
            """Returns which of the ids is spoken at each of these samples."""
            return np.minimum(np.searchsorted(ends, samples + _EARLY_SAMPLES, side="right"), len(ends) - 1)

        middles = first + LABEL_SAMPLES * (np.arange(frames * SLOTS) + 0.5)
        at = spoken_at(middles)
        steps = first + FRAME_SAMPLES // FRAME_STEPS * (np.arange(frames * FRAME_STEPS) + 0.5)
        values = np.minimum(middles // CYCLE, length // CYCLE - 1).astype(np.int64)
        after = np.arange(length // CYCLE)
        energies = np.interp(middles / CYCLE - 0.5, after, self._energy[row][: len(after)])
        codes = describe(
            said.phones[spoken_at(steps)], self._quarters[row][:frames], self._bends[row][:frames],
            self._f0[row][values] > VOICED_HZ, energies.astype(np.float32), self._voice,
        )  # fmt: skip
        samples = None
        if self._audio is not None:
            samples = _faded(self._audio[row][first : min(length, first + frames * FRAME_SAMPLES)], frames)
        return Utterance(sentence.key, sentence.text, codes, said.labels[at], said.words[at], samples)


def _faded(speech: Samples, frames: int) -> Samples:
    """Padded to whole frames, and without steps at both ends."""
    ramp = np.linspace(0, 1, round(_FADE_S * RATE_HZ), dtype=np.float32)
    samples = np.zeros(frames * FRAME_SAMPLES, np.int16)
    samples[: len(speech)] = speech
    samples[: len(ramp)] = samples[: len(ramp)] * ramp
    end = samples[max(0, len(speech) - len(ramp)) : len(speech)]
    end[:] = end * ramp[::-1][-len(end) :]
    return samples


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


@dataclass(frozen=True, slots=True)
class Symbols:
    """What belongs to each input id, including the silences at both ends."""

    labels: Bytes  # the teacher's own number, 0 for silence
    phones: Bytes  # as in codes.py
    words: Bytes


def symbols(phonemes: str, alphabet: dict[str, int]) -> Symbols:
    unmatched, word, stressed = phonemes.startswith(UNMATCHED), 0, False
    labels, phones, words = [0], [0], [UNKNOWN_WORD]
    for symbol in phonemes.removeprefix(UNMATCHED):
        if symbol == " ":
            word += 1
        number = alphabet.get(" " if symbol == INNER_SPACE else symbol)
        if number is None:
            continue
        if symbol in (" ", INNER_SPACE):
            # Without punctuation there is no pause: the previous sound continues.
            labels.append(labels[-1])
            phones.append(phones[-1])
            words.append(words[-1])
            continue
        silent = symbol in _SILENT
        labels.append(0 if silent else number)
        phones.append(0 if silent else phone_number(symbol, stressed=stressed))
        words.append(UNKNOWN_WORD if silent or unmatched else min(word, UNKNOWN_WORD - 1))
        stressed = symbol == STRESS[0]
    # A stress mark has its own duration, which belongs to the next sound.
    marks = {alphabet[mark] for mark in STRESS}
    for place in reversed(range(len(labels) - 1)):
        if labels[place] in marks:
            labels[place], phones[place] = labels[place + 1], phones[place + 1]
    arrays = ([*labels, 0], [*phones, 0], [*words, UNKNOWN_WORD])
    return Symbols(*(np.array(one, np.uint8) for one in arrays))


def read_sentences(path: Path) -> list[Sentence]:
    """Reads the output of phonemes.py, optionally as .xz."""
    content = path.read_bytes()
    text = (lzma.decompress(content) if path.suffix == ".xz" else content).decode()
    rows = [line.split("\t") for line in text.splitlines()]
    return [Sentence(f"s{number:06d}", text, said) for number, (text, said) in enumerate(rows)]
