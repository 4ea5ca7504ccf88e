"""Which word is spoken when: the teacher's phone labels matched with what its front end reads.

    python training/words.py WORK [--bundle .carry/teachers.tar.xz] [--workers 16]

Beside each finished shard of WORK/speech it writes NAME.words.npy, as long as NAME.phones.npy: every 20 ms the index
of the word in text.split(), from 0 in each utterance; 255 in silence and where it is not known. Needs no waves.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from corpus import FRAME_LABELS, shard_names
from teacher import PHONES, SILENT, Reading, Teacher

UNKNOWN = 255
_SILENT = np.array([PHONES.index(name) for name in SILENT])
_GROUP_SHARDS = 16  # read by one Festival: it takes as long to start as to read 50 sentences
_SKIPS = 3  # segments in a row that may be missing from the labels
# A wrong label costs more than a missing segment, which else would take a neighbour's label.
_WRONG, _MISSING, _NEVER = 4, 3, 1 << 20

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]


def words_of_tokens(text: str, names: list[str]) -> Places | None:
    """For each token the word of text.split() that it stands in. None: the tokens are not the text's characters."""
    text = text.strip()
    first = np.array([False, *(a.isspace() and not b.isspace() for a, b in itertools.pairwise(text))])
    words, end = np.cumsum(first), 0
    found = []
    for name in names:
        begin = text.find(name, end)
        if begin < 0 or any(character.isalnum() for character in text[end:begin]):
            return np.arange(len(names)) if len(names) == len(text.split()) else None
        found.append(words[begin])
        end = begin + len(name)
    return np.array(found, np.int64)


def align(labels: list[Bytes], expected: list[Bytes]) -> list[Places]:
    """For each label of each utterance the segment that it belongs to: never backwards, at the least cost."""
    rows, longest = len(labels), max(map(len, labels))
    segments = np.full((rows, max(map(len, expected))), len(PHONES), np.uint8)
    heard = np.zeros((longest, rows), np.uint8)
    for row in range(rows):
        segments[row, : len(expected[row])] = expected[row]
        heard[: len(labels[row]), row] = labels[row]
    width = segments.shape[1]
    # moves: how many segments further than the label before. Before the first label lies a segment -1.
    moves = np.zeros((longest, rows, width), np.uint8)
    costs = np.empty((longest, rows, width), np.int32)
    padded = np.full((rows, width + _SKIPS + 1), _NEVER, np.int32)
    padded[:, _SKIPS] = 0
    for time_step in range(longest):
        best = padded[:, _SKIPS + 1 :].copy()
        for move in range(1, _SKIPS + 2):
            other = padded[:, _SKIPS + 1 - move :][:, :width] + (move - 1) * _MISSING
            better = other < best
            best[better] = other[better]
            moves[time_step][better] = move
        best += (segments != heard[time_step][:, None]) * np.int32(_WRONG)
        costs[time_step] = padded[:, _SKIPS + 1 :] = best
        padded[:, _SKIPS] = _NEVER
    paths = []
    for row in range(rows):
        last, count = len(labels[row]) - 1, len(expected[row])
        left_over = _MISSING * np.arange(count)[::-1]
        place = int(np.argmin(costs[last, row, :count] + left_over))
        path = np.empty(last + 1, np.int64)
        for step, further in zip(range(last, -1, -1), moves[last::-1, row].tolist(), strict=True):
            path[step] = place
            place -= further[place]
        paths.append(_shared(labels[row], expected[row], path))
    return paths


def _shared(labels: Bytes, expected: Bytes, path: Places) -> Places:
    """A run of one phone that is several segments ("black cat") is divided evenly: nothing tells where it changes."""
    borders = np.flatnonzero(np.diff(labels)) + 1
    for begin, end in itertools.pairwise([0, *borders.tolist(), len(labels)]):
        first, count = path[begin], path[end - 1] - path[begin] + 1
        if count > 1 and (expected[first : first + count] == labels[begin]).all():
            path[begin:end] = first + np.arange(end - begin) * count // (end - begin)
    return path


def words_of_shard(
    lines: list[dict[str, Any]], phones: Bytes, readings: dict[str, Reading]
) -> tuple[Bytes, Counter[str]]:
    words = np.full(len(phones), UNKNOWN, np.uint8)
    counts: Counter[str] = Counter(utterances=len(lines), spoken=int((~np.isin(phones, _SILENT)).sum()))
    labels, expected, word_lists, begins = [], [], [], []
    for about in lines:
        reading = readings.get(about["key"])
        found = words_of_tokens(about["text"], reading.token_names) if reading else None
        if reading is None or found is None or found.max(initial=0) >= UNKNOWN:
            counts["left_out"] += 1
            continue
        begin = about["first_frame"] * FRAME_LABELS
        begins.append(begin)
        labels.append(phones[begin : begin + about["frames"] * FRAME_LABELS])
        expected.append(reading.phones)
        word_lists.append(np.where(reading.tokens < 0, UNKNOWN, found[reading.tokens]))
    if not labels:
        return words, counts
    for begin, heard, segments, of_segment, path in zip(
        begins, labels, expected, word_lists, align(labels, expected), strict=True
    ):
        words[begin : begin + len(heard)] = np.where(np.isin(heard, _SILENT), UNKNOWN, of_segment[path])
        counts["aligned"] += len(heard)
        counts["right"] += int((segments[path] == heard).sum())
    counts["with_word"] = int((words != UNKNOWN).sum())
    return words, counts


def run_group(names: list[str], folder: Path, work: Path, bundle: Path | None) -> Counter[str]:
    shards = {}
    for name in names:
        text = (folder / f"{name}.jsonl").read_text(encoding="utf-8")
        shards[name] = [json.loads(line) for line in text.splitlines()]
    scratch = work / "scratch" / f"words-{names[0]}"
    try:
        texts = [(about["key"], about["text"]) for lines in shards.values() for about in lines]
        readings = Teacher(work, bundle).read(texts, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    counts: Counter[str] = Counter()
    for name, lines in shards.items():
        words, of_shard = words_of_shard(lines, np.load(folder / f"{name}.phones.npy"), readings)
        part = folder / f"{name}.words.part.npy"
        np.save(part, words)
        part.rename(folder / f"{name}.words.npy")
        counts += of_shard
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--bundle", type=Path, help="Festival as carry.sh packs it; default: the system's")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    folder, teacher_work = options.work / "speech", options.work / "teacher"
    names = [name for name in shard_names(folder) if not (folder / f"{name}.words.npy").exists()]
    groups = [names[begin : begin + _GROUP_SHARDS] for begin in range(0, len(names), _GROUP_SHARDS)]
    Teacher(teacher_work, options.bundle)  # unpacks the bundle once, before workers share it
    begun, counts = time.monotonic(), Counter[str]()
    with ProcessPoolExecutor(options.workers) as pool:
        waiting = [pool.submit(run_group, group, folder, teacher_work, options.bundle) for group in groups]
        for done, future in enumerate(as_completed(waiting), start=1):
            counts += future.result()
            if done % 10 == 0 or done == len(groups):
                print(
                    f"{done}/{len(groups)} groups in {time.monotonic() - begun:.0f} s: "
                    f"{counts['with_word'] / counts['spoken']:.3%} of spoken labels have a word, "
                    f"{counts['left_out']} of {counts['utterances']} utterances left out, "
                    f"{counts['right'] / max(1, counts['aligned']):.3%} of labels as expected",
                    flush=True,
                )


if __name__ == "__main__":
    main()
