"""Makes WORK/codec.pt, WORK/talker.pt and WORK/vocabulary from a checkpoint, so that training can continue from it.

    python training/from_checkpoint.py WORK CHECKPOINT [--sizes demo]

A checkpoint has no discriminators and no heads that only help training (heads.py, the talker's phones): they begin
anew.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import paths  # noqa: F401
from codec import CodecModel
from export import VOCABULARY_FILES, Parts, named_places
from journal import save
from safetensors.torch import load_file
from sizes import BY_NAME, Sizes
from talker import SpeakingModel
from torch import Tensor

from oscine.model.codec import Codec
from oscine.model.config import ModelConfig, read_config
from oscine.model.names import codec_decoder_names, speech_names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--sizes", choices=tuple(BY_NAME), default="demo")
    options = parser.parse_args()
    sizes = BY_NAME[options.sizes]
    config = read_config(options.checkpoint)
    parts = Parts(config)
    _fill(named_places(parts, speech_names(config)), options.checkpoint)
    _fill(named_places(parts, codec_decoder_names(config.codec.decoder)), options.checkpoint / "speech_tokenizer")
    fresh = {"step": 0, "spent_s": 0.0, "sizes": sizes.as_dict()}
    options.work.mkdir(parents=True, exist_ok=True)
    save(options.work / "codec.pt", {"model": _codec_weights(parts.codec, sizes), "judges": {}, **fresh})
    talker = _talker_weights(parts, config)
    save(options.work / "talker.pt", {"average": talker, "model": talker, **fresh})
    vocabulary = options.work / "vocabulary"
    vocabulary.mkdir(exist_ok=True)
    for name in VOCABULARY_FILES:
        shutil.copyfile(options.checkpoint / name, vocabulary / name)


def _fill(places: dict[str, Tensor], folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    for name, place in places.items():
        place.copy_(stored[name])


def _codec_weights(codec: Codec, sizes: Sizes) -> dict[str, Tensor]:
    """The reverse of `_fill_codec` in export.py."""
    model = CodecModel(sizes)
    model.begin(seed=1)
    own = codec.state_dict()
    tables = {
        "entries": own.pop("dequantizer.embedding_sum"),
        "output_proj": own.pop("dequantizer.output_proj")[..., 0],
    }
    del own["dequantizer.cluster_usage"]  # ones
    weights = {f"decoder.{name}": value for name, value in own.items()} | tables
    heads = {name: value for name, value in model.state_dict().items() if "_head" in name}
    return weights | heads


def _talker_weights(parts: Parts, config: ModelConfig) -> dict[str, Tensor]:
    model = SpeakingModel(config)
    model.begin(seed=1, dropout=0.0)
    own = {name: value for name, value in parts.state_dict().items() if not name.startswith("codec.")}
    return model.state_dict() | own


if __name__ == "__main__":
    main()
