"""Synthesizes shards of speech from phonemes, in large batches on one GPU. Skips shards that exist.

    python training/speech.py WORK --teacher FOLDER [--phonemes FILE] [--hours 8]
    python training/speech.py WORK --teacher FOLDER --codes-only [--round 1]    all sentences, without audio

Shards are written to WORK/speech, without audio to WORK/codes. A shard is up to five files: NAME.wave.npy (int16,
24 kHz, whole frames end to end), NAME.codes.npy ([frames, 16], see codes.py), NAME.phones.npy and NAME.words.npy (a
label every 20 ms) and NAME.jsonl (a line per utterance: key, text, voice, style, first frame, frames), which is written
last. In another --round each sentence is said by another voice.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sizes import FRAME_SAMPLES, RATE_HZ, SPEAKERS
from teacher import Sentence, Teacher, Utterance, read_sentences

SHARD_SENTENCES = 512  # of one voice and style; about half an hour
# Share of each style; the rest is plain.
_STYLE_SHARES = {"slow": 0.06, "fast": 0.14, "high": 0.04, "low": 0.04}


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    voice: str
    style: str
    sentences: list[Sentence]


def plan(sentences: list[Sentence], seed: int, again: int = 0) -> list[Job]:
    """Each sentence gets one voice and one style; in the next round (`again`) another voice. Jobs are shuffled, so that
    a run that stops early has all kinds."""
    voices = tuple(SPEAKERS)
    draw = random.Random(seed)
    groups: dict[tuple[str, str], list[Sentence]] = {}
    styles, shares = zip(*_STYLE_SHARES.items(), strict=True)
    for sentence in sentences:
        voice = voices[(draw.randrange(len(voices)) + again) % len(voices)]
        style = draw.choices((*styles, "plain"), (*shares, 1 - sum(shares)))[0]
        groups.setdefault((voice, style), []).append(sentence)
    jobs = []
    for (voice, style), own in sorted(groups.items()):
        for begin in range(0, len(own), SHARD_SENTENCES):
            name = f"{again}-{voice}-{style}-{begin // SHARD_SENTENCES:04d}"
            jobs.append(Job(name, voice, style, own[begin : begin + SHARD_SENTENCES]))
    draw.shuffle(jobs)
    return jobs


def write_shard(job: Job, spoken: list[Utterance], folder: Path) -> float:
    """Returns the seconds of speech written."""
    arrays: dict[str, list[np.ndarray]] = {}
    lines, frame = [], 0
    for said in sorted(spoken, key=lambda one: one.key):
        frames = len(said.codes)
        kinds = {"codes": said.codes, "phones": said.labels, "words": said.words, "wave": said.samples}
        for kind, array in kinds.items():
            if array is not None:
                arrays.setdefault(kind, []).append(array)
        about = {"key": said.key, "text": said.text, "voice": job.voice, "style": job.style}
        lines.append(json.dumps(about | {"first_frame": frame, "frames": frames}))
        frame += frames
    for kind, parts in arrays.items():
        np.save(folder / f"{job.name}.{kind}.npy", np.concatenate(parts))
    part = folder / f"{job.name}.part"
    part.write_text("\n".join(lines) + "\n", encoding="utf-8")
    part.rename(folder / f"{job.name}.jsonl")
    return frame * FRAME_SAMPLES / RATE_HZ


def run(teacher: Teacher, jobs: list[Job], folder: Path, hours: float | None, *, sounding: bool) -> None:
    """Runs until all jobs are done or `hours` are reached. CPU cores write while the GPU synthesizes."""
    begun, spoken_s, there_s = time.monotonic(), 0.0, 0.0
    with ThreadPoolExecutor(4) as pool:
        waiting: list[Future[float]] = []
        for number, job in enumerate(jobs):
            if hours is not None and spoken_s + there_s >= hours * 3600:
                break
            ready = folder / f"{job.name}.jsonl"
            if ready.exists() and (not sounding or (folder / f"{job.name}.wave.npy").exists()):
                lines = ready.read_text(encoding="utf-8").splitlines()
                there_s += sum(json.loads(line)["frames"] for line in lines) * FRAME_SAMPLES / RATE_HZ
                continue
            spoken = list(teacher.say(job.sentences, job.voice, job.style, sounding=sounding))
            waiting.append(pool.submit(write_shard, job, spoken, folder))
            spoken_s += sum(len(one.codes) for one in spoken) * FRAME_SAMPLES / RATE_HZ
            took_s = time.monotonic() - begun
            pace = f"{spoken_s / 3600:.2f} h in {took_s:.0f} s ({spoken_s / took_s:.0f} x real time)"
            print(f"{number + 1}/{len(jobs)} shards, {pace}", flush=True)
        total_s = sum(future.result() for future in waiting)
    print(f"{total_s / 3600:.2f} h of speech written in {time.monotonic() - begun:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--teacher", type=Path, required=True, help="folder with the teacher's weights")
    parser.add_argument("--phonemes", type=Path, help="default WORK/phonemes.tsv")
    parser.add_argument("--hours", type=float, help="stop after the shard that reaches it; existing shards count")
    parser.add_argument("--codes-only", action="store_true")
    parser.add_argument("--round", type=int, default=0)
    parser.add_argument("--part", type=int, default=0, help="of --parts processes that share the work")
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--limit", type=int, help="only the first sentences")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    folder = options.work / ("codes" if options.codes_only else "speech")
    folder.mkdir(parents=True, exist_ok=True)
    sentences = read_sentences(options.phonemes or options.work / "phonemes.tsv")
    cuda = options.device == "cuda"
    teacher = Teacher(options.teacher, torch.device(options.device), half=cuda, compiled=cuda, batch_s=1200)
    jobs = plan(sentences[: options.limit], options.seed, options.round)
    run(teacher, jobs[options.part :: options.parts], folder, options.hours, sounding=not options.codes_only)


if __name__ == "__main__":
    main()
