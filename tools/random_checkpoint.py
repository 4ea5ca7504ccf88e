"""Writes Qwen3-TTS checkpoints with random weights in the published layout: tiny ones for tests, full-size ones
for benchmarks. Scales keep activations near one. Speech is noise and ends at random.

    python tools/random_checkpoint.py OUT 1b7-custom_voice [--published] [--bpe DIR] [--seed N] [--shards N]
"""

import argparse
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch

from checkpoint_shapes import (
    ADDED_TOKENS,
    CHAT_TOKENS,
    DIALECTS,
    KINDS,
    LANGUAGES,
    MARKUP_TOKENS,
    QWEN_VOCABULARY,
    SIZES,
    SPEAKER_DIALECTS,
    SPEAKER_ENCODER_DEFAULTS,
    SPEAKERS,
    SPEECH_TOKENS,
    Config,
    Shapes,
    codec_shapes,
    published_codec_config,
    published_config,
    special_ids,
    talker_shapes,
    tiny_codec_config,
    tiny_config,
)

# Re-exported, so that one import suffices.
__all__ = [
    "ADDED_TOKENS", "CHAT_TOKENS", "CODEC_PREPROCESSOR", "DIALECTS", "GENERATION", "KINDS", "LANGUAGES",
    "MARKUP_TOKENS", "QWEN_VOCABULARY", "SIZES", "SPEAKERS", "SPEAKER_DIALECTS", "SPEAKER_ENCODER_DEFAULTS",
    "SPEECH_TOKENS", "TALKER_PREPROCESSOR", "Config", "Shapes", "byte_alphabet", "codec_shapes",
    "published_codec_config", "published_config", "random_tensor", "small_vocabulary", "special_ids",
    "talker_shapes", "tiny_codec_config", "tiny_config", "write_checkpoint", "write_vocabulary", "write_weights",
]  # fmt: skip

GENERATION = {
    "do_sample": True, "repetition_penalty": 1.05, "temperature": 0.9, "top_p": 1.0, "top_k": 50,
    "subtalker_dosample": True, "subtalker_temperature": 0.9, "subtalker_top_p": 1.0, "subtalker_top_k": 50,
    "max_new_tokens": 8192,
}  # fmt: skip
TALKER_PREPROCESSOR = {
    "padding_side": "left", "padding_value": 0.0, "processor_class": "Qwen3TTSProcessor",
    "return_attention_mask": True,
}  # fmt: skip
CODEC_PREPROCESSOR = {
    "chunk_length_s": None, "feature_extractor_type": "EncodecFeatureExtractor", "feature_size": 1, "overlap": None,
    "padding_side": "right", "padding_value": 0.0, "return_attention_mask": True, "sampling_rate": 24000,
}  # fmt: skip


# --- weights --------------------------------------------------------------------------------------------------------


def _fan_in(name: str, shape: tuple[int, ...]) -> int:
    if name.startswith("decoder.upsample.") and name.endswith(".0.conv.weight"):
        return shape[0]  # transposed, kernel = stride: one tap per input channel and sample
    if name.startswith("decoder.decoder.") and name.endswith(".block.1.conv.weight"):
        return 2 * shape[0]  # transposed, kernel = 2 strides: two taps
    return math.prod(shape[1:])


def _gain(name: str) -> float:
    if "codec_head" in name or "lm_head" in name:
        return 3.0  # wide logits, so that near ties are rare
    if name.startswith("encoder.encoder.layers.0."):
        return 4.0  # speech has an RMS near 0.1
    if name.startswith("decoder.decoder."):
        if ".conv2." in name:
            return 0.3  # the three residual units of a block add 27 % of power
        if ".block.1." in name:
            return 0.8  # compensates for them and for the snake activations
        if name == "decoder.decoder.6.conv.weight":
            return 0.2  # five standard deviations to the clamp
    return 1.0


def random_tensor(name: str, shape: tuple[int, ...], generator: torch.Generator, eos_gain: float) -> torch.Tensor:
    """One fp32 tensor, scaled by its role in the network."""
    leaf = name.rsplit(".", 1)[-1]
    if leaf == "initialized":
        return torch.ones(shape)
    noise = torch.randn(shape, generator=generator, device=generator.device)
    if leaf == "cluster_usage":
        return noise.abs_().add_(1.0)
    if leaf == "embed_sum":
        # Each residual codebook is finer than the previous one; otherwise codes would hardly depend on the audio.
        return noise.mul_(0.85 ** int(name.split(".layers.")[1].split(".")[0]))
    if leaf == "embedding_sum":
        return noise.mul_(1.5 if "rvq_first" in name else 0.5)
    if leaf in ("alpha", "beta"):
        return noise.mul_(0.3).add_(0.7 if leaf == "beta" else 0.0)
    if leaf in ("gamma", "scale"):
        return noise.mul_(0.1).add_(0.5)
    if leaf == "bias":
        return noise.mul_(0.05)
    if len(shape) == 1:  # weight of a norm
        return noise.mul_(0.1).add_(1.0)
    if "embedding" in name:
        # Fifteen predictor rows are summed into each talker input; their sum has the scale of code 0's row.
        return noise.mul_(0.25) if "code_predictor" in name else noise
    noise.mul_(_gain(name) / math.sqrt(_fan_in(name, shape)))
    if name == "talker.codec_head.weight":
        noise[2150].mul_(eos_gain)  # a wider logit wins the argmax once in a few dozen frames
    return noise


def _safetensors_header(shapes: Shapes, dtype: torch.dtype) -> bytes:
    code = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}[dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, shape in shapes.items():
        end = start + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format aligns tensor bytes to 8
    return len(text).to_bytes(8, "little") + text


def _write_tensors(
    file: BinaryIO, shapes: Shapes, dtype: torch.dtype, generator: torch.Generator, eos_gain: float
) -> None:
    # Written tensor by tensor: the library's writer needs all tensors at once, plus a copy of each as bytes.
    file.write(_safetensors_header(shapes, dtype))
    for name, shape in shapes.items():
        tensor = random_tensor(name, shape, generator, eos_gain).to(dtype).cpu().contiguous()
        tensor.view(-1).view(torch.uint8).numpy().tofile(file)


def _split(shapes: Shapes, shards: int, itemsize: int) -> Iterator[Shapes]:
    """Consecutive shards of similar size, none empty."""
    if not 1 <= shards <= len(shapes):
        raise ValueError(f"shards must be 1 to {len(shapes)}, got {shards}")
    total = sum(math.prod(shape) for shape in shapes.values()) * itemsize
    part: Shapes = {}
    parts_done, written, left = 0, 0, len(shapes)
    for name, shape in shapes.items():
        part[name] = shape
        written += math.prod(shape) * itemsize
        left -= 1
        parts_after = shards - parts_done - 1
        if parts_after and (written >= total * (parts_done + 1) / shards or left == parts_after):
            yield part
            part, parts_done = {}, parts_done + 1
    yield part


def write_weights(
    folder: Path,
    shapes: Shapes,
    *,
    dtype: torch.dtype,
    generator: torch.Generator,
    shards: int = 1,
    eos_gain: float = 1.0,
) -> None:
    if shards == 1:
        with open(folder / "model.safetensors", "wb") as file:
            _write_tensors(file, shapes, dtype, generator, eos_gain)
        return
    places: dict[str, str] = {}
    for number, part in enumerate(_split(shapes, shards, dtype.itemsize), start=1):
        file_name = f"model-{number:05d}-of-{shards:05d}.safetensors"
        places |= dict.fromkeys(part, file_name)
        with open(folder / file_name, "wb") as file:
            _write_tensors(file, part, dtype, generator, eos_gain)
    total = sum(math.prod(shape) for shape in shapes.values()) * dtype.itemsize
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": places})


# --- vocabulary -----------------------------------------------------------------------------------------------------


def byte_alphabet() -> list[str]:
    """The printable character for each byte in a byte-level vocab.json."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def small_vocabulary() -> tuple[dict[str, int], list[str]]:
    """Bytes and a few words: (vocab, merges). Each role name must be one token."""
    alphabet = byte_alphabet()
    vocab = {character: byte for byte, character in enumerate(alphabet)}
    merges: dict[str, None] = {}  # in order of priority, without duplicates
    for word in ("assistant", "user", "\n\n", "\n\n\n", " the", " and", " you", "hello", "voice", "speak", "ing"):
        letters = [alphabet[byte] for byte in word.encode()]
        known = letters[0]
        for letter in letters[1:]:
            merges.setdefault(f"{known} {letter}")
            known += letter
            vocab.setdefault(known, len(vocab))
    return vocab, list(merges)


def write_vocabulary(folder: Path, vocab: dict[str, int], merges: list[str]) -> None:
    (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")


def _write_tokenizer(folder: Path, bpe: Path | None) -> dict[str, int]:
    """Writes the three tokenizer files; returns the vocabulary without the added tokens."""
    if bpe is None:
        vocab, merges = small_vocabulary()
        write_vocabulary(folder, vocab, merges)
    else:
        for name in ("vocab.json", "merges.txt"):
            shutil.copyfile(bpe / name, folder / name)
        vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    added = {
        str(len(vocab) + place): {
            "content": token, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
            "special": token not in MARKUP_TOKENS,
        }
        for place, token in enumerate(ADDED_TOKENS)
    }  # fmt: skip
    config = {
        "add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": added,
        "additional_special_tokens": CHAT_TOKENS[1:] + SPEECH_TOKENS, "bos_token": None,
        "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>", "errors": "replace",
        "model_max_length": 131072, "pad_token": "<|endoftext|>", "processor_class": "Qwen3TTSProcessor",
        "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer", "unk_token": None,
    }  # fmt: skip
    _write_json(folder / "tokenizer_config.json", config)
    return vocab


# --- checkpoints ----------------------------------------------------------------------------------------------------


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_checkpoint(
    out: Path,
    *,
    size: str,
    kind: str,
    widths: str = "tiny",
    bpe: Path | None = None,
    seed: int = 0,
    eos_gain: float = 2.0,
    transformers_version: str = "4.57.2",
    shards: int = 1,
    dtype: torch.dtype = torch.bfloat16,
    few_blocks: bool = False,
) -> Path:
    """Writes one checkpoint folder and returns it.

    `bpe` is a folder with vocab.json and merges.txt; without it a small vocabulary is written, with matching
    ids in config.json. A seed gives the same weights on the same type of device (CPU and CUDA generators differ).
    With version 4.57.2 the official loader keeps Qwen's split rule; with 4.57.3 it would use Mistral's. `few_blocks`
    is for a tiny codec.
    """
    if widths not in ("tiny", "published"):
        raise ValueError(f"widths must be 'tiny' or 'published', got '{widths}'")
    tiny = widths == "tiny"
    config = (tiny_config if tiny else published_config)(size, kind, transformers_version)
    codec = (
        tiny_codec_config(transformers_version, few_blocks=few_blocks)
        if tiny
        else published_codec_config(transformers_version)
    )
    codec_folder = out / "speech_tokenizer"
    codec_folder.mkdir(parents=True, exist_ok=True)

    vocab = _write_tokenizer(out, bpe)
    config |= special_ids(len(vocab), vocab["assistant"])
    if tiny and bpe is None:
        config["talker_config"]["text_vocab_size"] = math.ceil((len(vocab) + len(ADDED_TOKENS)) / 64) * 64

    _write_json(out / "config.json", config)
    _write_json(out / "generation_config.json", GENERATION)
    _write_json(out / "preprocessor_config.json", TALKER_PREPROCESSOR)
    _write_json(codec_folder / "config.json", codec)
    _write_json(codec_folder / "preprocessor_config.json", CODEC_PREPROCESSOR)

    device = "cuda" if torch.cuda.is_available() and not tiny else "cpu"
    generator = torch.Generator(device).manual_seed(seed)
    write_weights(codec_folder, codec_shapes(codec), dtype=torch.float32, generator=generator)
    write_weights(out, talker_shapes(config), dtype=dtype, generator=generator, shards=shards, eos_gain=eos_gain)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a Qwen3-TTS checkpoint with random weights.")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("model", choices=[f"{size}-{kind}" for size in SIZES for kind in KINDS])
    parser.add_argument("--published", action="store_true", help="the published widths instead of tiny ones")
    parser.add_argument("--bpe", type=Path, help="folder with the published vocab.json and merges.txt")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shards", type=int, default=1)
    asked = parser.parse_args()
    size, _, kind = asked.model.partition("-")
    widths = "published" if asked.published else "tiny"
    out = write_checkpoint(
        asked.out, size=size, kind=kind, widths=widths, bpe=asked.bpe, seed=asked.seed, shards=asked.shards
    )
    print(out)


if __name__ == "__main__":
    main()
