"""Writes trained weights as a checkpoint folder in the published layout, which the ordinary code loads.

    python training/export.py WORK OUT [--temperature 0.3] [--parts DIR]

Talker and predictor are stored in bf16, as published; the codec in fp16, which is more precise at the same size.
--parts also writes the folder as a tar in pieces of 15 MB: `cat DIR/demo.tar.* | tar x` joins them.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import paths  # noqa: F401
import torch
from instructions import EXAMPLES
from journal import load
from safetensors.torch import save_file
from sizes import Sizes, codec_config, talker_config
from torch import Tensor, nn

from checkpoint_shapes import ADDED_TOKENS, CHAT_TOKENS, MARKUP_TOKENS, SPEECH_TOKENS
from oscine.audio.pcm import CODEBOOKS
from oscine.model.codec import Codec
from oscine.model.config import ModelConfig, read_config
from oscine.model.names import Names, codec_decoder_names, speech_names
from oscine.model.speech_model import Predictor, Talker
from oscine.model.weights import tensor_views
from random_checkpoint import CODEC_PREPROCESSOR, TALKER_PREPROCESSOR, _write_json

MAX_BYTES = 32_000_000
VOCABULARY_FILES = ("vocab.json", "merges.txt")
_PART_BYTES = 15_000_000
GENERATION = {
    "do_sample": True, "temperature": 0.3, "top_k": 20, "top_p": 1.0, "repetition_penalty": 1.0,
    # Codes 1..15 follow from code 0 and the text; sampling them only adds noise.
    "subtalker_dosample": False, "subtalker_temperature": 0.6, "subtalker_top_k": 20, "subtalker_top_p": 1.0,
    "max_new_tokens": 1024,
}  # fmt: skip


def write_layout(folder: Path, sizes: Sizes, vocabulary: Path, generation: dict[str, Any] | None = None) -> None:
    """Writes everything except the weights."""
    codec = folder / "speech_tokenizer"
    codec.mkdir(parents=True, exist_ok=True)
    for name in VOCABULARY_FILES:
        shutil.copyfile(vocabulary / name, folder / name)
    entries: dict[str, int] = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    assert len(entries) <= sizes.text_tokens, (len(entries), sizes.text_tokens)
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(len(entries)))
    # The voice learns words: numbers, signs and abbreviations are written out before it reads them.
    _write_json(
        folder / "config.json",
        {**talker_config(sizes, entries), "oscine_text_level": "spoken", "oscine_frames_per_text_token": 2.2},
    )
    _write_json(folder / "generation_config.json", generation or GENERATION)
    _write_json(folder / "preprocessor_config.json", TALKER_PREPROCESSOR)
    _write_json(folder / "instructions.json", EXAMPLES)
    _write_json(codec / "config.json", codec_config(sizes))
    _write_json(codec / "preprocessor_config.json", CODEC_PREPROCESSOR)


def _tokenizer_config(entries: int) -> dict[str, Any]:
    added = {
        str(entries + place): {
            "content": token, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
            "special": token not in MARKUP_TOKENS,
        }
        for place, token in enumerate(ADDED_TOKENS)
    }  # fmt: skip
    return {
        "add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": added,
        "additional_special_tokens": CHAT_TOKENS[1:] + SPEECH_TOKENS, "bos_token": None,
        "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>", "errors": "replace",
        "model_max_length": 4096, "pad_token": "<|endoftext|>", "processor_class": "Qwen3TTSProcessor",
        "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer", "unk_token": None,
    }  # fmt: skip


class Parts(nn.Module):
    """The package's modules under the names in oscine.model.names."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.talker, self.predictor = Talker(config.talker), Predictor(config.predictor)
        self.codec = Codec(config.codec)


def named_places(parts: nn.Module, names: Names) -> dict[str, Tensor]:
    """The tensors of the checkpoint by name, as views of the modules' own."""
    places = {}
    for ours, theirs in names.items():
        path, _, leaf = ours.rpartition(".")
        owner = parts.get_submodule(path)
        places |= zip(theirs, tensor_views(owner, getattr(owner, leaf).data, len(theirs)), strict=True)
    return places


def _fill_codec(codec: Codec, state: dict[str, Tensor], sizes: Sizes) -> None:
    prefix = "decoder."
    own = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    codec.load_state_dict(
        own
        | {
            "dequantizer.embedding_sum": state["entries"],
            "dequantizer.cluster_usage": torch.ones(CODEBOOKS, sizes.codebook_size),
            "dequantizer.output_proj": state["output_proj"][..., None],
        }
    )


def _unused_codec(sizes: Sizes) -> dict[str, Tensor]:
    """Tensors that the published file has but inference never reads."""
    dim = sizes.codebook_dim
    return {f"decoder.quantizer.rvq_{x}.input_proj.weight": torch.zeros(dim // 2, dim, 1) for x in ("first", "rest")}


def export(work: Path, out: Path, generation: dict[str, Any]) -> int:
    """Returns the size of the folder in bytes."""
    cpu = torch.device("cpu")
    talker, codec = load(work / "talker.pt", cpu), load(work / "codec.pt", cpu)
    if talker is None or codec is None:
        raise FileNotFoundError(f"{work} lacks talker.pt or codec.pt; run talker.py and codec.py first")
    sizes = Sizes(**talker["sizes"])
    assert sizes == Sizes(**codec["sizes"]), "talker and codec are of different sizes"
    write_layout(out, sizes, work / "vocabulary", generation)
    config = read_config(out)
    parts = Parts(config)
    for name in ("talker", "predictor"):
        prefix = f"{name}."
        own = {key.removeprefix(prefix): v for key, v in talker["average"].items() if key.startswith(prefix)}
        getattr(parts, name).load_state_dict(own)
    _fill_codec(parts.codec, codec["model"], sizes)
    speech = named_places(parts, speech_names(config))
    _save(out / "model.safetensors", speech, torch.bfloat16)
    tensors = named_places(parts, codec_decoder_names(config.codec.decoder)) | _unused_codec(sizes)
    _save(out / "speech_tokenizer" / "model.safetensors", tensors, torch.float16)
    return sum(path.stat().st_size for path in out.rglob("*") if path.is_file())


def _save(path: Path, tensors: dict[str, Tensor], dtype: torch.dtype) -> None:
    stored = {name: tensor.contiguous().to(dtype) for name, tensor in tensors.items()}
    for name, tensor in stored.items():
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} is not finite in {dtype}")
    save_file(stored, path, metadata={"format": "pt"})
    path.chmod(0o644)


def cut(folder: Path, parts: Path) -> None:
    parts.mkdir(parents=True, exist_ok=True)
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        tar.add(folder, arcname=folder.name)
    content = whole.getvalue()
    for number, begin in enumerate(range(0, len(content), _PART_BYTES)):
        (parts / f"demo.tar.{number:02d}").write_bytes(content[begin : begin + _PART_BYTES])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--temperature", type=float, default=GENERATION["temperature"])
    parser.add_argument("--top-k", type=int, default=GENERATION["top_k"])
    parser.add_argument("--sample-rest", action="store_true", help="sample codes 1..15 too")
    parser.add_argument("--parts", type=Path)
    options = parser.parse_args()
    generation = GENERATION | {
        "temperature": options.temperature, "top_k": options.top_k, "subtalker_dosample": options.sample_rest,
    }  # fmt: skip
    size = export(options.work, options.out, generation)
    print(f"{options.out}: {size} bytes, {size / MAX_BYTES:.1%} of the maximum")
    if options.parts:
        cut(options.out, options.parts)


if __name__ == "__main__":
    main()
