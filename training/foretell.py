"""Predicts codes with teacher forcing (the true codes as history) and writes NAME.foretold.npy beside NAME.codes.npy.

    python training/foretell.py WORK

Code 0 of each frame stays true, so that codes and speech stay aligned. `codec.py --polish` then trains the decoder on
the codes that it will get at run time; the predictor's codes have less detail than the true ones.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np
import paths  # noqa: F401
import torch
from batches import Asking, collate, read_shard, request_for
from corpus import shard_names
from export import write_layout
from journal import Journal, load
from sizes import Sizes
from talker import SpeakingModel

from oscine.model.config import read_config


def load_talker(work: Path, device: torch.device) -> SpeakingModel:
    state = load(work / "talker.pt", device)
    if state is None:
        raise FileNotFoundError(f"{work / 'talker.pt'} is missing; run talker.py first")
    write_layout(work / "layout", Sizes(**state["sizes"]), work / "vocabulary")  # missing after a restore
    model = SpeakingModel(read_config(work / "layout"))
    model.begin(0, 0.0)
    model.to(device).load_state_dict(state["average"])
    return model.eval()


def predict_all(work: Path, device: torch.device) -> None:
    speech = work / "speech"
    model = load_talker(work, device)
    asking = Asking(work / "layout")
    draw, same, frames = random.Random(0), np.zeros(16), 0
    for name in shard_names(speech, sounding=True, coded=True):
        examples = read_shard(speech, name)
        lessons = [asking.lesson(example, request_for(example, draw, plain=True)) for example in examples]
        batch = collate(model.config, lessons).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            codes = model.predict_codes(batch).to(torch.uint8).cpu().numpy()
        np.save(speech / f"{name}.foretold.npy", codes)
        same += (codes == batch.codes.cpu().numpy()).sum(0)
        frames += len(codes)
    Journal(work / "log.jsonl", "foretell").write(frames=frames, right=[round(x, 3) for x in (same / frames).tolist()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    predict_all(options.work, torch.device(options.device))


if __name__ == "__main__":
    main()
