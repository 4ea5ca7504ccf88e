"""Our list of configs, names and shapes equals the published one."""

import gzip
import json
from pathlib import Path

import pytest

import checkpoint_shapes

PUBLISHED = json.loads(gzip.decompress((Path(__file__).parent.parent / "data/published_shapes.json.gz").read_bytes()))


@pytest.mark.parametrize("name", sorted(PUBLISHED["models"]))
def test_talker_shapes_and_config_are_the_published_ones(name: str) -> None:
    config = checkpoint_shapes.published_config(*name.split("-"))
    assert config == PUBLISHED["models"][name]["config"]
    shapes = {tensor: list(shape) for tensor, shape in checkpoint_shapes.talker_shapes(config).items()}
    assert shapes == PUBLISHED["models"][name]["tensors"]


def test_codec_shapes_and_config_are_the_published_ones() -> None:
    config = checkpoint_shapes.published_codec_config()
    assert config == PUBLISHED["codec"]["config"]
    shapes = {tensor: [list(shape), "float32"] for tensor, shape in checkpoint_shapes.codec_shapes(config).items()}
    assert shapes == PUBLISHED["codec"]["tensors"]


def test_special_ids_of_the_true_vocabulary_are_the_published_ones() -> None:
    config = PUBLISHED["models"]["1b7-base"]["config"]
    assert checkpoint_shapes.special_ids() == {name: config[name] for name in checkpoint_shapes.special_ids()}
