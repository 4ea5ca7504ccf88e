"""Aligns known text to audio and transcribes audio with a Whisper model in CTranslate2's format. `main` runs it in a
process of its own."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from oscine.align.aligner import CODES, TOKENIZER
from oscine.align.timing import Span, Times, lateness_s, settle, token_starts, word_times
from oscine.align.word_split import Word, split_words
from oscine.audio.clips import Clip, resample
from oscine.audio.pcm import Samples
from oscine.errors import ConfigError
from oscine.process.child import Message, as_pipe, connection_to_parent, read_message, write_message

INSTALL = "pip install 'oscine[align]'"
_WINDOW_S = 30.0  # Whisper's limit
_TAIL_S = 0.5  # silence added after the speech, so that the last word can end
_FRAME_S = 0.02  # of the encoder
_MAX_TOKENS = 400  # of one window; the decoder has 448 positions
# If a text is longer than a window, each window gets the words that take about this long. So its audio holds all of
# its words, even if their pace is uneven; the last ones are aligned again with what follows them.
_WORDS_S = 20.0
_UNSURE_WORDS = 3


class Whisper:
    def __init__(self, folder: Path, threads: int) -> None:
        try:
            import ctranslate2
            import tokenizers
        except ImportError as error:
            raise ConfigError(f"word timestamps need {error.name}; install it: {INSTALL}") from None
        try:
            self._model = ctranslate2.models.Whisper(str(folder), compute_type="int8", intra_threads=threads)
            self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER))
        except Exception as error:  # of either library: RuntimeError, ValueError, Exception
            raise ConfigError(f"the aligner {str(folder)!r} cannot be loaded: {error}") from None
        self._tokenizer.encode_special_tokens = True  # "<|en|>" in a text is text
        self._view: Any = ctranslate2.StorageView.from_array
        self.late_s = 0.0
        self.late_s = lateness_s(lambda speech, text: self._align_window(speech, text, split_words(text), "english"))

    @property
    def languages(self) -> list[str]:
        """The codes of the languages that the model knows."""
        if not self._model.is_multilingual:
            return ["en"]
        names = (name for name in self._tokenizer.get_vocab() if name.startswith("<|") and 6 <= len(name) <= 7)
        return sorted(name[2:-2] for name in names)

    def align(self, clip: Clip, text: str, language: str) -> Times:
        """Returns the start and the end of each word of `split_words(text)`."""
        speech = resample(clip, RATE_HZ).samples
        words = split_words(text)
        times: Times = []
        start_s = 0.0
        while len(times) < len(words):
            window = speech[round(start_s * RATE_HZ) :][: round((_WINDOW_S - _TAIL_S) * RATE_HZ)]
            left = words[len(times) :]
            some = self._words_of_window(text, left, len(speech) / RATE_HZ - start_s)
            found = self._align_window(window, text, some, language)
            if len(some) < len(left):
                found = found[: max(1, len(found) - _UNSURE_WORDS)]
            times += [(start_s + begin_s, start_s + end_s) for begin_s, end_s in found]
            start_s = min(times[-1][1], len(speech) / RATE_HZ)
        return settle(times, speech, RATE_HZ)

    def transcribe(self, clip: Clip, language: str) -> str:
        speech = resample(clip, RATE_HZ).samples
        size = round(_WINDOW_S * RATE_HZ)
        return " ".join(filter(None, (self._transcribe_window(window, language) for window in _windows(speech, size))))

    def _words_of_window(self, text: str, words: Sequence[Word], audio_s: float) -> Sequence[Word]:
        if audio_s > _WINDOW_S - _TAIL_S:
            reach = words[0].start + (words[-1].end - words[0].start) * _WORDS_S / audio_s
            words = words[: max(1, sum(word.end <= reach for word in words))]
        while len(words) > 1 and len(self._tokens(text, words)[0]) > _MAX_TOKENS:
            words = words[: len(words) // 2]
        return words

    def _align_window(self, window: Samples, text: str, words: Sequence[Word], language: str) -> Times:
        ids, spans = self._tokens(text, words)
        ids, spans = ids[:_MAX_TOKENS], spans[:_MAX_TOKENS]  # cuts one endless word
        if len(window) < 4 * HOP or not ids:
            return [(0.0, 0.0)] * len(words)
        encoded, frames = self._encode(np.pad(window, (0, round(_TAIL_S * RATE_HZ))))
        found = self._model.align(encoded, self._prompt(encoded, language), [ids], frames)[0]
        starts = token_starts(found.alignments, len(ids), _FRAME_S)
        return word_times(words, spans, [max(0.0, start_s - self.late_s) for start_s in starts])

    def _tokens(self, text: str, words: Sequence[Word]) -> tuple[list[int], list[Span]]:
        """Returns token ids, and the characters of each in `text`, not counting white space."""
        begin, end = words[0].start, words[-1].end
        encoding = self._tokenizer.encode(" " + text[begin:end], add_special_tokens=False)
        spans = []
        for first, last in encoding.offsets:
            first, last = max(begin, begin + first - 1), begin + last - 1
            while first < last and text[first].isspace():
                first += 1
            spans.append((first, max(first, last)))
        return encoding.ids, spans

    def _encode(self, speech: Samples) -> tuple[Any, int]:
        """Returns the encoder's output and the number of its input frames. Less than 30 s are allowed and cost less."""
        features = log_mel(speech, self._model.n_mels)
        features = np.ascontiguousarray(features[None, :, : features.shape[1] // 2 * 2])
        return self._model.encode(self._view(features)), features.shape[2]

    def _prompt(self, encoded: Any, language: str) -> list[int]:
        names = ["<|startoftranscript|>"]
        if self._model.is_multilingual:
            code = f"<|{CODES.get(language, language)}|>"
            if self._tokenizer.token_to_id(code) is None:
                code = self._model.detect_language(encoded)[0][0][0]
            names += [code, "<|transcribe|>"]
        return [self._tokenizer.token_to_id(name) or 0 for name in names]

    def _transcribe_window(self, speech: Samples, language: str) -> str:
        encoded, _ = self._encode(np.pad(speech, (0, round(_WINDOW_S * RATE_HZ) - len(speech))))
        prompt = [*self._prompt(encoded, language), self._tokenizer.token_to_id("<|notimestamps|>")]
        found = self._model.generate(encoded, [prompt], beam_size=5)[0]
        return self._tokenizer.decode(found.sequences_ids[0], skip_special_tokens=True).strip()


def _windows(speech: Samples, size: int) -> list[Samples]:
    """Cuts the speech into pieces of at most `size` samples, where the last third of each is quietest."""
    windows, block = [], RATE_HZ // 50
    while len(speech) > size:
        last_third = speech[size * 2 // 3 : size]
        power = np.square(last_third[: len(last_third) // block * block]).reshape(-1, block).mean(axis=1)
        cut = size * 2 // 3 + int(power.argmin()) * block + block // 2
        windows.append(speech[:cut])
        speech = speech[cut:]
    return [*windows, speech] if len(speech) >= 4 * HOP else windows


# --- Whisper's input: the log-mel spectrogram of 16 kHz audio, a frame every 10 ms.


Array = npt.NDArray[np.float32]

RATE_HZ = 16_000
HOP = 160  # samples
_FFT = 400
_HZ_PER_MEL = 200 / 3  # below 1 kHz; above, 27 mels are a factor of 6.4 (Slaney's scale)
_KNEE_HZ = 1000.0
_KNEE_MEL = _KNEE_HZ / _HZ_PER_MEL
_LOG_STEP = np.log(6.4) / 27


def log_mel(samples: Samples, mels: int) -> Array:
    """Computes the spectrogram [mels, len(samples) // HOP]."""
    padded = np.pad(samples, _FFT // 2, mode="reflect" if len(samples) > _FFT // 2 else "constant")
    windows = np.lib.stride_tricks.sliding_window_view(padded, _FFT)[:-1:HOP]
    hann = np.hanning(_FFT + 1)[:-1].astype(np.float32)
    power = np.abs(np.fft.rfft(windows * hann)).astype(np.float32) ** 2
    decades = np.log10(np.maximum(_mel_filters(mels) @ power[: len(samples) // HOP].T, 1e-10))
    limited = np.maximum(decades, decades.max(initial=-10.0) - 8)
    return np.ascontiguousarray((limited + 4) / 4, dtype=np.float32)


@functools.cache
def _mel_filters(mels: int) -> Array:
    """Returns triangles of equal area, [mels, bins]."""
    bins_hz = np.fft.rfftfreq(_FFT, 1 / RATE_HZ)
    edges = np.linspace(0, _KNEE_MEL + np.log(RATE_HZ / 2 / _KNEE_HZ) / _LOG_STEP, mels + 2)
    edges_hz = np.where(edges < _KNEE_MEL, edges * _HZ_PER_MEL, _KNEE_HZ * np.exp(_LOG_STEP * (edges - _KNEE_MEL)))
    widths = np.diff(edges_hz)[:, None]
    rising = (bins_hz - edges_hz[:-2, None]) / widths[:-1]
    falling = (edges_hz[2:, None] - bins_hz) / widths[1:]
    area = 2 / (edges_hz[2:] - edges_hz[:-2])
    return (np.maximum(0, np.minimum(rising, falling)) * area[:, None]).astype(np.float32)


# --- The aligner process. The first message holds the settings; then each job is a message with samples.

_NICENESS = 5  # the engine and the front end come first


def main(connection: str) -> None:
    with contextlib.suppress(AttributeError, OSError):
        os.nice(_NICENESS)
    pipe = as_pipe(connection_to_parent(connection))
    with contextlib.suppress(EOFError, OSError):
        settings, _ = read_message(pipe)
        try:
            whisper = Whisper(Path(settings["folder"]), settings["threads"])
        except ConfigError as error:
            write_message(pipe, {"error": str(error)})
            return
        write_message(pipe, {"languages": whisper.languages})
        while True:
            write_message(pipe, _answer(whisper, *read_message(pipe)))


def _answer(whisper: Whisper, job: Message, pcm: bytes) -> Message:
    clip = Clip(np.frombuffer(pcm, "<f4"), job["rate_hz"])
    try:
        if job["method"] == "align":
            return {"times": whisper.align(clip, job["text"], job["language"])}
        return {"text": whisper.transcribe(clip, job["language"])}
    except Exception as error:  # any library's error about this audio; the next job may work
        return {"error": f"{type(error).__name__}: {error}"}
