"""The published checkpoints: every parameter is filled, every tensor is used or known to be unused."""

import gzip
import json
import math
from pathlib import Path

import pytest
import torch

from oscine.model.config import ModelConfig, read_config
from oscine.model.names import (
    UNUSED_CODEC,
    UNUSED_CODEC_WITHOUT_CLONING,
    UNUSED_SPEECH,
    codec_names,
    speech_names,
)
from oscine.model.speech_model import SpeechModel

PUBLISHED = json.loads(gzip.decompress((Path(__file__).parent.parent / "data/published_shapes.json.gz").read_bytes()))
MODELS = sorted(PUBLISHED["models"])
Shapes = dict[str, tuple[int, ...]]


def speech_tensors(name: str) -> Shapes:
    return {tensor: tuple(shape) for tensor, shape in PUBLISHED["models"][name]["tensors"].items()}


def codec_tensors() -> Shapes:
    return {tensor: tuple(shape) for tensor, (shape, _) in PUBLISHED["codec"]["tensors"].items()}


def published_config(folder: Path, name: str) -> ModelConfig:
    (folder / "speech_tokenizer").mkdir()
    contents = {
        "config.json": PUBLISHED["models"][name]["config"],
        "generation_config.json": PUBLISHED["generation_config"],
        "speech_tokenizer/config.json": PUBLISHED["codec"]["config"],
    }
    for file, content in contents.items():
        (folder / file).write_text(json.dumps(content), encoding="utf-8")
    return read_config(folder)


def joined(ours: tuple[int, ...], parts: list[tuple[int, ...]]) -> bool:
    """Whether tensors of these shapes fill ours: alone, concatenated, or stacked along a new first axis."""
    if parts == [ours] or (len(set(parts)) == 1 and ours == (len(parts), *parts[0])):
        return True
    below = len({part[1:] for part in parts}) == 1 and ours == (sum(part[0] for part in parts), *parts[0][1:])
    return len(parts) > 1 and below


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_is_filled_by_published_tensors_of_its_shape(tmp_path: Path, name: str) -> None:
    config = published_config(tmp_path, name)
    with torch.device("meta"):
        model = SpeechModel(config)
    ours = {parameter: tuple(value.shape) for parameter, value in model.named_parameters()}
    tables = ((speech_names(config), speech_tensors(name)), (codec_names(config), codec_tensors()))
    filled: set[str] = set()
    for names, tensors in tables:
        assert not filled & set(names)
        filled |= set(names)
        for parameter, sources in names.items():
            parts = [tensors[source] for source in sources]
            assert joined(ours[parameter], parts), (parameter, ours[parameter], parts)
            assert math.prod(ours[parameter]) == sum(math.prod(part) for part in parts)
    assert filled == set(ours)


@pytest.mark.parametrize("name", MODELS)
def test_every_published_tensor_is_used_once_or_listed_as_unused(tmp_path: Path, name: str) -> None:
    config = published_config(tmp_path, name)
    unused_codec = UNUSED_CODEC if config.speaker_encoder else UNUSED_CODEC_WITHOUT_CLONING
    for names, tensors, unused in (
        (speech_names(config), speech_tensors(name), UNUSED_SPEECH),
        (codec_names(config), codec_tensors(), unused_codec),
    ):
        used = [source for sources in names.values() for source in sources]
        assert len(used) == len(set(used))
        assert {tensor for tensor in tensors if not unused.fullmatch(tensor)} == set(used)


def test_parameter_counts_of_the_published_models(tmp_path: Path) -> None:
    totals = {}
    for name in MODELS:
        folder = tmp_path / name
        folder.mkdir()
        used = speech_names(published_config(folder, name))
        tensors = speech_tensors(name)
        totals[name] = sum(math.prod(tensors[source]) for sources in used.values() for source in sources)
    assert {name: round(total / 1e9, 3) for name, total in totals.items()} == {
        "1b7-base": 1.929,
        "1b7-custom_voice": 1.917,
        "1b7-voice_design": 1.917,
        "0b6-base": 0.915,
        "0b6-custom_voice": 0.906,
    }
