"""Word error rate of a folder of recordings (000.wav, 001.wav, ...) against a text file, line by line.

    .venv/bin/python training/recognize.py WAVS [WAVS ...] [--texts training/texts/heldout.txt] [--json OUT]

The recognizer runs in the environment of `make asr`, which has its weights; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import paths

from oscine.audio.clips import read_clip, resample
from oscine_eval.recognizer import RATE_HZ
from oscine_eval.transcriber import Transcriber, TranscriberConfig
from oscine_eval.transcriber_process import open_transcriber
from oscine_eval.word_error_rate import align, normalize


def measure(transcriber: Transcriber, folder: Path, texts: list[str]) -> dict[str, Any]:
    lines, wrong, words = [], 0, 0
    for number, text in enumerate(texts):
        path = folder / f"{number:03d}.wav"
        if not path.exists():
            continue
        transcript = transcriber.transcribe(resample(read_clip(path), RATE_HZ).samples, "en").text
        wanted = normalize(text)
        missed = align(wanted, normalize(transcript)).errors
        wrong, words = wrong + missed, words + len(wanted)
        lines.append({"wav": path.name, "text": text, "transcript": transcript, "errors": missed, "words": len(wanted)})
    wer = wrong / max(words, 1)
    return {"folder": str(folder), "sentences": len(lines), "words": words, "wer": wer, "lines": lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--texts", type=Path, default=paths.TRAINING / "texts" / "heldout.txt")
    parser.add_argument("--json", type=Path, help="write all transcripts")
    parser.add_argument("--show", type=int, default=8, help="the worst sentences to print")
    options = parser.parse_args()
    texts = options.texts.read_text(encoding="utf-8").splitlines()
    python = paths.ROOT / ".venv-asr" / "bin" / "python"
    with open_transcriber(TranscriberConfig(dnsmos=False), python) as transcriber:
        results = [measure(transcriber, folder, texts) for folder in options.folders]
    for result in results:
        count = f"{result['sentences']} sentences, {result['words']} words"
        print(f"{result['folder']}: WER {result['wer']:.1%} over {count}")
        for line in sorted(result["lines"], key=lambda line: -line["errors"])[: options.show]:
            if line["errors"]:
                print(f"   {line['errors']}: {line['text']}\n      {line['transcript']}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
