"""Sentences -> shards of speech on disk, on all cores; a shard that is there is not made again.

    python training/speech.py WORK [--sentences FILE] [--bundle .carry/teachers.tar.xz] [--workers 16] [--only 0.25]

A shard is three files: NAME.wave.npy (int16, 24 kHz, whole frames end to end), NAME.phones.npy (a label every 20 ms)
and NAME.jsonl (a line per utterance: key, text, voice, style, first frame, frames), which is written last.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sizes import FRAME_SAMPLES, RATE_HZ, SPEAKERS
from teacher import Teacher

SHARD_SENTENCES = 48
# How often each style is asked for; the rest is plain.
_STYLE_SHARES = {"slow": 0.06, "fast": 0.06, "high": 0.06, "low": 0.06}


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    voice: str
    style: str
    texts: list[tuple[str, str]]


def plan(sentences: list[str], seed: int) -> list[Job]:
    """Every sentence is said by one voice in one style. Jobs are shuffled: any first part of them has everything."""
    draw = random.Random(seed)
    groups: dict[tuple[str, str], list[tuple[str, str]]] = {}
    styles, shares = zip(*_STYLE_SHARES.items(), strict=True)
    for number, text in enumerate(sentences):
        voice = draw.choice(tuple(SPEAKERS))
        style = draw.choices((*styles, "plain"), (*shares, 1 - sum(shares)))[0]
        groups.setdefault((voice, style), []).append((f"s{number:06d}", text))
    jobs = []
    for (voice, style), texts in sorted(groups.items()):
        for begin in range(0, len(texts), SHARD_SENTENCES):
            name = f"{voice}-{style}-{begin // SHARD_SENTENCES:04d}"
            jobs.append(Job(name, voice, style, texts[begin : begin + SHARD_SENTENCES]))
    draw.shuffle(jobs)
    return jobs


def run_job(job: Job, folder: Path, work: Path, bundle: Path | None) -> float:
    """Seconds of speech made."""
    ready, sound = folder / f"{job.name}.jsonl", folder / f"{job.name}.wave.npy"
    if ready.exists() and sound.exists():
        return 0.0
    scratch = work / "scratch" / job.name
    waves, labels, lines, frame = [], [], [], 0
    try:
        for said in Teacher(work, bundle).say(job.texts, job.voice, job.style, scratch):
            frames = len(said.samples) // FRAME_SAMPLES
            waves.append(said.samples)
            labels.append(said.labels)
            about = {"key": said.key, "text": said.text, "voice": job.voice, "style": job.style}
            lines.append(json.dumps(about | {"first_frame": frame, "frames": frames}))
            frame += frames
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    part = sound.with_suffix(".part")
    with part.open("wb") as file:
        np.save(file, np.concatenate(waves))
    part.rename(sound)
    if not ready.exists():  # or its codes came home without sound: the rest is there, and may be in use
        np.save(folder / f"{job.name}.phones.npy", np.concatenate(labels))
        part = ready.with_suffix(".part")
        part.write_text("\n".join(lines) + "\n", encoding="utf-8")
        part.rename(ready)
    return frame * FRAME_SAMPLES / RATE_HZ


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--sentences", type=Path, help="one a line; default WORK/sentences.txt")
    parser.add_argument("--bundle", type=Path, help="Festival as carry.sh packs it; default: the system's")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", type=float, default=1.0, help="the first part of the shards")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    source = options.sentences or options.work / "sentences.txt"
    jobs = plan(source.read_text(encoding="utf-8").splitlines(), options.seed)
    jobs = jobs[: max(1, round(len(jobs) * options.only))]
    folder, teacher_work = options.work / "speech", options.work / "teacher"
    folder.mkdir(parents=True, exist_ok=True)
    Teacher(teacher_work, options.bundle).prepare()
    begun, spoken_s = time.monotonic(), 0.0
    with ProcessPoolExecutor(options.workers) as pool:
        waiting = [pool.submit(run_job, job, folder, teacher_work, options.bundle) for job in jobs]
        for done, future in enumerate(as_completed(waiting), start=1):
            spoken_s += future.result()
            if done % 40 == 0 or done == len(jobs):
                took_s = time.monotonic() - begun
                print(
                    f"{done}/{len(jobs)} shards, {spoken_s / 3600:.2f} h of speech in {took_s:.0f} s "
                    f"({spoken_s / took_s:.0f} x real time)",
                    flush=True,
                )


if __name__ == "__main__":
    main()
