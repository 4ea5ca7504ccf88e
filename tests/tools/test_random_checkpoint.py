"""Random checkpoints match their config and can be read with the safetensors library."""

import gzip
import json
import math
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import random_checkpoint as maker

PUBLISHED = json.loads(gzip.decompress((Path(__file__).parent.parent / "data/published_shapes.json.gz").read_bytes()))


def read_json(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def test_generation_defaults_are_the_published_ones() -> None:
    assert PUBLISHED["generation_config"] == maker.GENERATION


@pytest.mark.parametrize("size", maker.SIZES)
@pytest.mark.parametrize("kind", maker.KINDS)
def test_written_tensors_have_the_computed_shapes(tmp_path: Path, size: str, kind: str) -> None:
    folder = maker.write_checkpoint(tmp_path / "out", size=size, kind=kind)
    config = read_json(folder / "config.json")
    weights = load_file(folder / "model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == maker.talker_shapes(config)
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    codec = load_file(folder / "speech_tokenizer/model.safetensors")
    codec_config = read_json(folder / "speech_tokenizer/config.json")
    assert {name: tuple(tensor.shape) for name, tensor in codec.items()} == maker.codec_shapes(codec_config)
    assert {tensor.dtype for tensor in codec.values()} == {torch.float32}
    assert all(bool(tensor.isfinite().all()) for tensor in [*weights.values(), *codec.values()])
    assert ("talker.code_predictor.small_to_mtp_projection.weight" in weights) == (size == "1b7")
    assert any(name.startswith("speaker_encoder.") for name in weights) == (kind == "base")


def test_shards_hold_the_same_weights_as_one_file(tmp_path: Path) -> None:
    whole = maker.write_checkpoint(tmp_path / "whole", size="0b6", kind="base")
    parts = maker.write_checkpoint(tmp_path / "parts", size="0b6", kind="base", shards=3)
    assert not (parts / "model.safetensors").exists()
    index = read_json(parts / "model.safetensors.index.json")
    expected = load_file(whole / "model.safetensors")
    assert set(index["weight_map"]) == set(expected)
    assert len(set(index["weight_map"].values())) == 3
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in expected.values())
    for name, file_name in index["weight_map"].items():
        with safe_open(parts / file_name, framework="pt") as shard:
            assert torch.equal(shard.get_tensor(name), expected[name])


def test_a_seed_gives_the_same_weights_and_another_gives_others(tmp_path: Path) -> None:
    folders = [
        maker.write_checkpoint(tmp_path / str(place), size="1b7", kind="base", seed=seed)
        for place, seed in enumerate((1, 1, 2))
    ]
    first, again, other = (load_file(folder / "model.safetensors") for folder in folders)
    name = "talker.codec_head.weight"
    assert all(torch.equal(first[tensor], again[tensor]) for tensor in first)
    assert not torch.equal(first[name], other[name])


def test_a_given_vocabulary_is_copied_and_the_ids_follow_it(tmp_path: Path) -> None:
    vocab, merges = maker.small_vocabulary()
    vocab |= {"zz": len(vocab)}
    bpe = tmp_path / "bpe"
    bpe.mkdir()
    maker.write_vocabulary(bpe, vocab, [*merges, "z z"])
    folder = maker.write_checkpoint(tmp_path / "out", size="0b6", kind="custom_voice", bpe=bpe)
    assert read_json(folder / "vocab.json") == vocab
    config = read_json(folder / "config.json")
    added = read_json(folder / "tokenizer_config.json")["added_tokens_decoder"]
    assert config["im_start_token_id"] == len(vocab) + 1
    assert added[str(config["tts_pad_token_id"])]["content"] == "<tts_pad>"
    assert added[str(config["tts_eos_token_id"])]["content"] == "<tts_text_eod>"
    assert config["assistant_token_id"] == vocab["assistant"]


def test_the_small_vocabulary_reads_each_role_name_as_one_token() -> None:
    vocab, merges = maker.small_vocabulary()
    assert [vocab[character] for character in maker.byte_alphabet()] == list(range(256))
    ranks = {merge: rank for rank, merge in enumerate(merges)}
    for word in ("assistant", "user"):
        parts = list(word)
        while len(parts) > 1:
            places = range(len(parts) - 1)
            best = min(places, key=lambda at: ranks.get(f"{parts[at]} {parts[at + 1]}", math.inf))
            assert f"{parts[best]} {parts[best + 1]}" in ranks
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        assert parts[0] in vocab


def test_an_unknown_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown model '3b-base'"):
        maker.write_checkpoint(tmp_path / "out", size="3b", kind="base")
    with pytest.raises(ValueError, match="shards must be"):
        maker.write_checkpoint(tmp_path / "out", size="0b6", kind="base", shards=0)
