"""Figures of long texts, which are spoken in segments: word error rate and ratings of the first and of the last third
(drift), and sentences that were dropped. rate.py --thirds has rated the recordings before."""

from __future__ import annotations

import json
import statistics
import wave
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from ratings import rating_of
from sizes import SPEAKERS
from wave_cache import Row

from oscine.text.segmenter import SegmenterConfig, segment_text
from oscine_eval.word_error_rate import align, normalize

MIN_RECOGNIZED = 0.4  # of a sentence's words; a sentence with fewer counts as dropped
THIRDS = ("first_third", "last_third")
_BY_SENTENCE = SegmenterConfig(first_chars=1, segment_chars=1)


@dataclass(frozen=True, slots=True)
class LongText:
    """A text beside its transcript."""

    errors: tuple[int, int, int]  # in each third of its words
    words: tuple[int, int, int]
    sentences: int
    dropped: tuple[str, ...]


def compare_text(text: str, transcript: str) -> LongText:
    sentences = segment_text(text, _BY_SENTENCE)
    spans = [normalize(sentence) for sentence in sentences]
    reference = [word for words in spans for word in words]
    errors, recognized, place = [0, 0, 0], [], -1
    for wanted, found in align(reference, normalize(transcript)).pairs:
        if wanted is not None:
            place += 1
            recognized.append(wanted == found)
        errors[_third(max(place, 0), len(reference))] += wanted != found
    words = Counter(_third(number, len(reference)) for number in range(len(reference)))
    ends = list(accumulate(map(len, spans)))
    shares = [sum(recognized[end - len(span) : end]) / max(len(span), 1) for end, span in zip(ends, spans, strict=True)]
    dropped = tuple(one for one, share in zip(sentences, shares, strict=True) if share < MIN_RECOGNIZED)
    return LongText((errors[0], errors[1], errors[2]), (words[0], words[1], words[2]), len(sentences), dropped)


def _third(place: int, length: int) -> int:
    return 3 * place // length


def long_figures(folder: Path, texts: list[str]) -> Row:
    """`folder` is the output of `evaluate.py model --alternate`."""
    recordings = [path for voice in SPEAKERS for path in sorted((folder / voice).glob("[0-9][0-9][0-9].wav"))]
    rows = [rating_of(path) for path in recordings]
    compared = [
        compare_text(texts[int(path.stem)], row["transcript"]) for path, row in zip(recordings, rows, strict=True)
    ]
    ends = [end for voice in SPEAKERS for end in json.loads((folder / voice / "spoken.json").read_text())["ends"]]
    ratings = {
        f"{judge}_{third}": statistics.mean(row[third][judge] for row in rows)
        for judge in ("dnsmos", "distillmos")
        for third in THIRDS
    }
    seconds = sorted(_seconds(path) for path in recordings)
    return {
        "texts": len(recordings),
        "shortest_s": seconds[0],
        "longest_s": seconds[-1],
        "ends": dict(Counter(ends)),
        "wer": _wer(compared, 0, 1, 2),
        "wer_first_third": _wer(compared, 0),
        "wer_last_third": _wer(compared, 2),
        **ratings,
        "sentences": sum(one.sentences for one in compared),
        "dropped": [
            {"voice": path.parent.name, "text": int(path.stem), "sentence": sentence}
            for path, one in zip(recordings, compared, strict=True)
            for sentence in one.dropped
        ],
    }


def _wer(compared: list[LongText], *thirds: int) -> float:
    errors = sum(one.errors[third] for one in compared for third in thirds)
    return errors / sum(one.words[third] for one in compared for third in thirds)


def _seconds(path: Path) -> float:
    with wave.open(str(path)) as file:
        return file.getnframes() / file.getframerate()
