"""Encodes all speech, whole utterances at a time, into one file beside each shard: NAME.codes.npy, [frames, 16].

    python training/encode.py WORK [--pack OUT]

--pack writes everything that talker.py needs into files of 15 MB, for a machine without the speech.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
import paths  # noqa: F401
import torch
from codec import ENCODER_WINDOW, CodecModel
from corpus import Corpus, Item, shard_names
from journal import Journal, load
from losses import MelLoss
from modules import decode_latent, make_trainable
from sizes import FRAME_SAMPLES, Sizes
from torch import Tensor

from oscine.frames import CODEBOOKS

_BATCH_FRAMES = 6000
_PART_BYTES = 15 * 2**20
_PACKED = ("codes", "phones", "words")  # of each shard, besides its lines


def load_codec(path: Path, device: torch.device) -> tuple[CodecModel, Sizes]:
    state = load(path, device)
    if state is None:
        raise FileNotFoundError(f"{path} is missing; run codec.py first")
    sizes = Sizes(**state["sizes"])
    model = CodecModel(sizes)
    make_trainable(model)
    model.to(device).load_state_dict(state["model"])
    return model.eval().requires_grad_(False), sizes


def batches(items: list[Item]) -> list[list[Item]]:
    """Batches of similar lengths, longest first."""
    made: list[list[Item]] = []
    for item in sorted(items, key=lambda item: -item.frames):
        if not made or (len(made[-1]) + 1) * made[-1][0].frames > _BATCH_FRAMES:
            made.append([])
        made[-1].append(item)
    return made


def padded(corpus: Corpus, batch: list[Item]) -> Tensor:
    longest = max(item.frames for item in batch)
    samples = torch.zeros(len(batch), longest, FRAME_SAMPLES, device=corpus.device)
    for row, item in enumerate(batch):
        samples[row, : item.frames] = corpus.wave[item.first_frame : item.first_frame + item.frames].float() / 32767
    return samples.flatten(1)


@torch.inference_mode()
def encode_all(model: CodecModel, corpus: Corpus, journal: Journal) -> Tensor:
    device = corpus.device
    codes = torch.zeros(len(corpus.wave), CODEBOOKS, dtype=torch.uint8, device=device)
    mel = MelLoss().to(device)
    distances, decodings = torch.zeros((), device=device), 0
    for number, batch in enumerate(batches(corpus.items)):
        samples = padded(corpus, batch)
        made = model.quantizer.encode(model.encode(samples, ENCODER_WINDOW))
        for row, item in enumerate(batch):
            codes[item.first_frame : item.first_frame + item.frames] = made[row, : item.frames].to(torch.uint8)
        if number % 20 == 0:
            decoded = decode_latent(model.decoder, model.quantizer.latent_of(made))
            distances, decodings = distances + mel(decoded, samples), decodings + 1
    used = [float((torch.bincount(codes[:, book].long(), minlength=256) > 0).sum()) for book in range(CODEBOOKS)]
    entropies = [_entropy_bits(codes[:, book]) for book in range(CODEBOOKS)]
    journal.write(
        mel=float(distances) / max(decodings, 1), entries_used=used, entropy_bits=entropies, hours=corpus.hours
    )
    return codes


def _entropy_bits(codes: Tensor) -> float:
    share = torch.bincount(codes.long()).double() / len(codes)
    return round(float(-(share[share > 0] * share[share > 0].log2()).sum()), 3)


def pack(folder: Path, out: Path) -> None:
    """Writes codes-00.npz, codes-01.npz, ... for unpack()."""
    out.mkdir(parents=True, exist_ok=True)
    names = shard_names(folder, coded=True)
    total = sum((folder / f"{name}.codes.npy").stat().st_size * 5 // 4 for name in names)  # including phones
    parts = max(1, math.ceil(total / _PART_BYTES))
    for part in range(parts):
        arrays: dict[str, np.ndarray] = {}
        for name in names[part::parts]:
            arrays |= {f"{name}.{kind}": np.load(folder / f"{name}.{kind}.npy") for kind in _PACKED}
            lines = (folder / f"{name}.jsonl").read_text(encoding="utf-8")
            arrays[f"{name}.lines"] = np.frombuffer(lines.encode(), np.uint8)
        np.savez_compressed(out / f"codes-{part:02d}.npz", allow_pickle=False, **arrays)


def unpack(packed: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(packed.glob("codes-*.npz")):
        with np.load(path) as arrays:
            for name in {key.rpartition(".")[0] for key in arrays.files}:
                for kind in _PACKED:
                    np.save(folder / f"{name}.{kind}.npy", arrays[f"{name}.{kind}"])
                (folder / f"{name}.jsonl").write_bytes(arrays[f"{name}.lines"].tobytes())


def encode(work: Path, folder: Path, device: torch.device, packed: Path | None) -> None:
    # Full precision: everything after this is trained on these codes.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    model, sizes = load_codec(work / "codec.pt", device)
    corpus = Corpus(folder, device)
    codes = encode_all(model, corpus, Journal(work / "log.jsonl", "encode")).cpu().numpy()
    for name, first, frames in corpus.shards:
        np.save(folder / f"{name}.codes.npy", codes[first : first + frames])
    (work / "encoded.json").write_text(json.dumps({"sizes": sizes.as_dict(), "frames": len(codes)}))
    if packed:
        pack(folder, packed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--pack", type=Path)
    parser.add_argument("--unpack", type=Path, help="only unpack codes into WORK/speech")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    folder = options.work / "speech"
    if options.unpack:
        unpack(options.unpack, folder)
    else:
        encode(options.work, folder, torch.device(options.device), options.pack)


if __name__ == "__main__":
    main()
