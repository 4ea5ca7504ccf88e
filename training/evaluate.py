"""Records the held-out sentences with the teacher or a checkpoint, for recognize.py and for listening.

    python training/evaluate.py teacher OUT --teacher FOLDER --phonemes HELDOUT.tsv [--voice wren] [--limit 100]
    python training/evaluate.py codec OUT --work WORK ...    the teacher's codes, decoded by WORK/codec.pt
    python training/evaluate.py model OUT [--model demo] [--voice wren] [--mode whole] [--seed 0] [--batch 20]
    python training/evaluate.py model OUT --sentences training/texts/long.txt --alternate    long texts, in segments

OUT/VOICE/000.wav is line 0. For a model the script prints the finish reasons ("length" is a runaway), and spoken.json
beside the recordings has the finish reason of each sentence and the hash of the weights, for judge.py. Long texts are
split into segments as in `oscine say` and in the server.
"""

from __future__ import annotations

import argparse
import json
import time
import wave
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import paths
from sizes import RATE_HZ, SPEAKERS

_CPU_BATCH_S = 10  # of the teacher; larger ones need gigabytes, and are slower
_MAX_FRAMES = 400  # 32 s, more than twice the longest held-out sentence
_MAX_CHARS = 300  # longer texts have only the engine's own limits, as in the server


def write_wave(path: Path, samples: npt.NDArray[np.int16]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE_HZ)
        file.writeframes(samples.tobytes())


def by_teacher(options: argparse.Namespace, texts: list[str], voice: str) -> dict[str, Any]:
    spoken_s = 0.0
    for said in _taught(options, texts, voice):
        write_wave(options.out / voice / f"{int(said.key[1:]):03d}.wav", said.samples)
        spoken_s += len(said.samples) / RATE_HZ
    return {"spoken_s": spoken_s}


def _taught(options: argparse.Namespace, texts: list[str], voice: str) -> Iterator[Any]:
    import torch
    from teacher import Teacher, read_sentences

    torch.manual_seed(options.seed)
    device = _device(options)
    teacher = Teacher(options.teacher, device, batch_s=600 if device.type == "cuda" else _CPU_BATCH_S)
    sentences = read_sentences(options.phonemes)[: len(texts)]
    assert [one.text for one in sentences] == texts, f"{options.phonemes} was made from other sentences"
    yield from teacher.say(sentences, voice, options.style)


def by_codec(options: argparse.Namespace, texts: list[str], voice: str) -> dict[str, Any]:
    """The teacher's codes, decoded. Its recordings stay in OUT/teacher: its noise is random, so distances need the same
    recording."""
    import torch
    from codec import load_codec
    from losses import MelLoss, phase_loss, stft_distance

    device = _device(options)
    codec = load_codec(options.work / "codec.pt", device)
    mel, distances = MelLoss().to(device), []
    for said in _taught(options, texts, voice):
        name = f"{int(said.key[1:]):03d}.wav"
        write_wave(options.out / "teacher" / voice / name, said.samples)
        with torch.inference_mode():
            true = torch.from_numpy(said.samples.astype(np.float32) / 32767)[None].to(device)
            made = codec(torch.from_numpy(said.codes.astype(np.int64))[None].to(device)).clamp(-1, 1)
            distances.append([float(distance(made, true)) for distance in (mel, stft_distance, phase_loss)])
        write_wave(options.out / voice / name, np.round(made[0].cpu().numpy() * 32767).astype(np.int16))
    means = np.round(np.mean(distances, 0), 4).tolist()
    return dict(zip(("mel", "stft", "phase"), means, strict=True))


def _device(options: argparse.Namespace) -> Any:
    import torch

    return torch.device("cuda" if options.device == "auto" and torch.cuda.is_available() else "cpu")


def by_model(options: argparse.Namespace, texts: list[str], voice: str) -> dict[str, Any]:
    from demo_files import fingerprint
    from oscine import Oscine
    from oscine.model.checkpoint import find_checkpoint

    tts = Oscine(options.model, device=options.device)
    numbers = [number for number in range(len(texts)) if not options.alternate or _alternating(number) == voice]
    ends: list[str] = []
    spoken_s, begun = 0.0, time.monotonic()
    for begin in range(0, len(numbers), options.batch):
        batch = numbers[begin : begin + options.batch]
        requests = [_request(options, texts, voice, number) for number in batch]
        for number, speech in zip(batch, tts.speak_batch(requests), strict=True):
            ends.append(speech.finish_reason)
            spoken_s += len(speech.audio) / RATE_HZ
            samples = np.round(np.clip(speech.audio, -1, 1) * 32767).astype(np.int16)
            write_wave(options.out / voice / f"{number:03d}.wav", samples)
    asked = {name: getattr(options, name) for name in ("mode", "language", "instruct", "seed")}
    about = {"weights": fingerprint(find_checkpoint(options.model)), "asked": asked, "ends": ends}
    (options.out / voice / "spoken.json").write_text(json.dumps(about), encoding="utf-8")
    return {"spoken_s": spoken_s, "took_s": time.monotonic() - begun, "ends": dict(Counter(ends))}


def _alternating(number: int) -> str:
    return tuple(SPEAKERS)[number % len(SPEAKERS)]


def _request(options: argparse.Namespace, texts: list[str], voice: str, number: int) -> Any:
    from oscine import SpeechRequest

    return SpeechRequest(
        text=texts[number], voice=voice, seed=options.seed + number, text_mode=options.mode, language=options.language,
        instructions=options.instruct, max_new_tokens=_MAX_FRAMES if len(texts[number]) <= _MAX_CHARS else None,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("by", choices=["teacher", "codec", "model"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--sentences", type=Path, default=paths.TRAINING / "texts" / "heldout.txt")
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--voice", help="default: both of ours; for the teacher also its own names")
    parser.add_argument("--alternate", action="store_true", help="of a model: the voices take turns, line by line")
    parser.add_argument("--work", type=Path, default=paths.ROOT / ".cache" / "training")
    parser.add_argument("--teacher", type=Path, default=paths.ROOT / ".carry" / "teacher", help="folder of its weights")
    parser.add_argument("--phonemes", type=Path, default=paths.ROOT / ".carry" / "training" / "heldout.tsv")
    parser.add_argument("--style", default="plain", help="of the teacher")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--mode", choices=["whole", "streaming"], default="whole")
    parser.add_argument("--language", default="auto")
    parser.add_argument("--instruct")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=20)
    options = parser.parse_args()
    texts = options.sentences.read_text(encoding="utf-8").splitlines()[: options.limit]
    speak = {"teacher": by_teacher, "codec": by_codec, "model": by_model}[options.by]
    for voice in (options.voice,) if options.voice else tuple(SPEAKERS):
        print(json.dumps({"voice": voice} | speak(options, texts, voice)), flush=True)


if __name__ == "__main__":
    main()
