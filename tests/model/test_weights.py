"""Loading weights: every tensor is checked by name, shape and dtype; peak memory is little more than the weights."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from oscine import Oscine
from oscine.errors import CheckpointError
from oscine.model.weights import load_model
from oscine.speech.events import Speech
from random_checkpoint import talker_shapes, write_weights
from tests.conftest import ROOT, CheckpointMaker
from tests.variants import Tensors, change_json, change_tensors, linked, replace_file

WEIGHTS = "model.safetensors"
CODEC_WEIGHTS = "speech_tokenizer/model.safetensors"
HEAD = "talker.codec_head.weight"
CPU = torch.device("cpu")

# torch warns on a CPU without bf16 instructions and falls back to another implementation.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")]


@pytest.fixture
def folder(small_checkpoints: CheckpointMaker, tmp_path: Path) -> Path:
    return linked(small_checkpoints("1b7", "custom_voice"), tmp_path / "checkpoint")


def speech(folder: Path, dtype: str = "float32") -> Speech:
    return Oscine(folder, device="cpu", dtype=dtype, slots=1).speak("hello there", seed=3, max_new_tokens=6)  # type: ignore[arg-type]


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_model(folder, device=CPU)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_parts_of_a_checkpoint_can_be_loaded_alone(folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    model = load_model(folder, device=CPU, parts=["codec"], progress=lambda *counts: seen.append(counts))
    codec = load_model(folder, device=CPU).codec
    assert seen[-1] == (len(seen), len(seen))
    assert all(torch.equal(*pair) for pair in zip(model.codec.buffers(), codec.buffers(), strict=True))
    assert all(torch.equal(*pair) for pair in zip(model.codec.parameters(), codec.parameters(), strict=True))
    assert all(parameter.is_meta for parameter in model.talker.parameters())


# The same weights in other files


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_shards_and_one_file_give_the_same_speech(small_checkpoints: CheckpointMaker, dtype: str) -> None:
    one = speech(small_checkpoints("1b7", "custom_voice"), dtype)
    shards = speech(small_checkpoints("1b7", "custom_voice", shards=3), dtype)
    np.testing.assert_array_equal(one.codes, shards.codes)
    np.testing.assert_array_equal(one.audio, shards.audio)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_numbers_in_an_fp32_file_give_the_same_speech(folder: Path, dtype: str) -> None:
    before = speech(folder, dtype)
    change_tensors(folder / WEIGHTS, lambda tensors: tensors.update({n: t.float() for n, t in tensors.items()}))
    assert load_file(folder / WEIGHTS)[HEAD].dtype == torch.float32
    np.testing.assert_array_equal(speech(folder, dtype).codes, before.codes)


def test_one_file_takes_precedence_over_a_stale_index(folder: Path) -> None:
    replace_file(folder / "model.safetensors.index.json", "{}")
    load_model(folder, device=CPU)


def test_dtypes_and_progress(folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    model = load_model(
        folder, device=CPU, dtype=torch.bfloat16, progress=lambda done, total: seen.append((done, total))
    )
    assert {p.dtype for part in (model.talker, model.predictor) for p in part.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in model.codec.parameters()} == {torch.float32}
    assert not any(p.requires_grad or p.is_meta for p in model.parameters())
    assert [done for done, _ in seen] == list(range(1, seen[-1][1] + 1))


# Tensors


def drop(name: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.pop(name)


def put(name: str, value: torch.Tensor) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: value})


CONV = "decoder.pre_conv.conv.bias"


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (WEIGHTS, drop(HEAD), f"lacks tensor {HEAD}; is this a complete Qwen3-TTS 12 Hz checkpoint?"),
        (CODEC_WEIGHTS, drop(CONV), f"lacks tensor {CONV}; is this"),
        (WEIGHTS, put("talker.extra", torch.zeros(1)), "holds tensor talker.extra, unknown to its config.json"),
        (CODEC_WEIGHTS, put("decoder.extra", torch.zeros(1)), "holds tensor decoder.extra, unknown to its config.json"),
        (
            WEIGHTS,
            put(HEAD, torch.zeros(3072, 64)),
            f"tensor {HEAD} has shape [3072, 64], config.json requires [3072, 96]",
        ),
        (WEIGHTS, put(HEAD, torch.zeros(96, 3072)), f"tensor {HEAD} has shape [96, 3072], config.json requires"),
        (
            WEIGHTS,
            put(HEAD, torch.zeros(3072, 96, dtype=torch.int8)),
            f"tensor {HEAD} has dtype torch.int8; expected",
        ),
        (
            CODEC_WEIGHTS,
            put(CONV, torch.zeros(48, dtype=torch.int64)),
            f"tensor {CONV} has dtype torch.int64; expected floating",
        ),
        (
            WEIGHTS,
            put("talker.model.layers.0.self_attn.k_proj.weight", torch.zeros(64, 96)),
            "tensor talker.model.layers.0.self_attn.k_proj.weight has shape [64, 96], config.json requires [128, 96]",
        ),
    ],
    ids=["missing", "missing in codec", "extra", "extra in codec", "misshapen", "transposed", "int8", "int64", "fused"],
)
def test_a_wrong_tensor_is_named_with_its_file(
    folder: Path, file: str, change: Callable[[Tensors], object], message: str
) -> None:
    change_tensors(folder / file, change)
    refused = refusal(folder)
    assert message in refused
    assert str(folder / file) in refused


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("file", "name"),
    [(WEIGHTS, HEAD), (WEIGHTS, "talker.model.layers.1.self_attn.k_proj.weight"), (CODEC_WEIGHTS, CONV)],
    ids=["alone", "fused", "codec"],
)
def test_nan_and_infinite_weights_are_refused_by_name(
    folder: Path, file: str, name: str, dtype: torch.dtype, number: float
) -> None:
    change_tensors(folder / file, lambda tensors: tensors[name].view(-1)[-1:].fill_(number))
    with pytest.raises(CheckpointError) as caught:
        load_model(folder, device=CPU, dtype=dtype)
    assert str(caught.value).startswith(f"{folder / file}: tensor {name} holds NaN or infinite numbers; the checkpoint")


def test_several_tensors_with_nan_are_counted(folder: Path) -> None:
    names = [f"talker.model.layers.{layer}.self_attn.k_proj.weight" for layer in (0, 1, 2)]
    change_tensors(folder / WEIGHTS, lambda tensors: [tensors[name].fill_(math.nan) for name in names])
    assert f"tensor {names[0]} holds NaN or infinite numbers (and 2 more)" in refusal(folder)


def test_many_missing_tensors_are_counted(folder: Path) -> None:
    change_tensors(folder / WEIGHTS, lambda tensors: [tensors.pop(n) for n in list(tensors) if ".layers.2." in n])
    message = refusal(folder)
    assert "lacks tensors talker.model.layers.2." in message
    assert " and 8 more; is this" in message


def test_weights_of_another_size_are_refused(folder: Path, small_checkpoints: CheckpointMaker) -> None:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to(small_checkpoints("0b6", "custom_voice") / WEIGHTS)
    assert "small_to_mtp_projection" in refusal(folder)


def test_a_wrong_tensor_in_a_shard_is_named_with_its_shard(small_checkpoints: CheckpointMaker, tmp_path: Path) -> None:
    folder = linked(small_checkpoints("1b7", "custom_voice", shards=3), tmp_path / "checkpoint")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    shard = folder / index["weight_map"][HEAD]
    change_tensors(shard, put(HEAD, torch.zeros(3072, 64)))
    assert f"{shard}: tensor {HEAD} has shape [3072, 64]" in refusal(folder)


def test_unused_tensors_may_be_absent(folder: Path) -> None:
    change_tensors(
        folder / CODEC_WEIGHTS, lambda tensors: [tensors.pop(n) for n in list(tensors) if n.startswith("encoder.")]
    )
    load_model(folder, device=CPU)


# Files


def cut(path: Path) -> None:
    replace_file(path, path.read_bytes()[:-1000])


def header_only(path: Path) -> None:
    replace_file(path, path.read_bytes()[:100])


@pytest.mark.parametrize("file", [WEIGHTS, CODEC_WEIGHTS])
@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (cut, "not a readable safetensors file"),
        (header_only, "not a readable safetensors file"),
        (lambda path: replace_file(path, b""), "not a readable safetensors file"),
        (
            lambda path: replace_file(path, b"version https://git-lfs.github.com/spec/v1\n"),
            "may be truncated: download",
        ),
        (lambda path: (path.unlink(), path.mkdir()), "not a readable safetensors file"),
        (lambda path: path.unlink(), "model.safetensors is missing in"),
    ],
    ids=["truncated", "header", "empty", "garbage", "folder", "missing"],
)
def test_a_bad_file_is_named(folder: Path, file: str, spoil: Callable[[Path], object], expected: str) -> None:
    spoil(folder / file)
    message = refusal(folder)
    assert expected in message
    assert "model.safetensors" in message
    assert str((folder / file).parent) in message


def test_a_checkpoint_without_its_codec_is_refused(folder: Path) -> None:
    for path in (folder / "speech_tokenizer").iterdir():
        path.unlink()
    (folder / "speech_tokenizer").rmdir()
    assert f"config.json is missing in {folder / 'speech_tokenizer'}" in refusal(folder)


@pytest.fixture
def sharded(small_checkpoints: CheckpointMaker, tmp_path: Path) -> Path:
    return linked(small_checkpoints("1b7", "custom_voice", shards=3), tmp_path / "sharded")


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded / "model-00002-of-00003.safetensors").unlink()
    assert f"model-00002-of-00003.safetensors is missing in {sharded}" in refusal(sharded)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "sub/model.safetensors", "a\0b"])
def test_an_index_may_not_name_files_elsewhere(sharded: Path, name: str) -> None:
    index = sharded / "model.safetensors.index.json"
    change_json(index, "weight_map", {HEAD: name})
    assert f"{index} names {name!r}, which is not a file in its own folder" in refusal(sharded)


@pytest.mark.parametrize("name", ["..", "."])
def test_an_index_may_not_name_folders(sharded: Path, name: str) -> None:
    change_json(sharded / "model.safetensors.index.json", "weight_map", {HEAD: name})
    assert str(sharded) in refusal(sharded)


@pytest.mark.parametrize("content", ["{}", "[]", '{"weight_map": {}}', '{"weight_map": ["a"]}'])
def test_an_index_without_a_map_is_named(sharded: Path, content: str) -> None:
    replace_file(sharded / "model.safetensors.index.json", content)
    assert "model.safetensors.index.json has no weight_map" in refusal(sharded)


# Memory

# Anonymous memory only: RSS also counts pages of the mapped weight files, which the kernel may drop at any time. A
# thread samples while the tensors are copied.
MEASURE = """
import json, re, sys, threading
from pathlib import Path
import torch
from oscine.model.weights import load_model

def anonymous_bytes():
    return int(re.search(r"RssAnon:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

torch.set_num_threads(1)
torch.ones(64, 64) @ torch.ones(64, 64)  # the first operation allocates permanent buffers
before = peak = anonymous_bytes()
over = threading.Event()

def watch():
    global peak
    while not over.wait(0.001):
        peak = max(peak, anonymous_bytes())

watcher = threading.Thread(target=watch)
watcher.start()
model = load_model(Path(sys.argv[1]), device=torch.device("cpu"), dtype=getattr(torch, sys.argv[2]))
over.set()
watcher.join()
weights = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
print(json.dumps({"weights": weights, "peak": peak - before}))
"""


@pytest.fixture(scope="module")
def large(small_checkpoints: CheckpointMaker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight talker layers with 200 MB of fp32."""
    folder = linked(small_checkpoints("1b7", "custom_voice"), tmp_path_factory.mktemp("large") / "checkpoint")
    change_json(folder / "config.json", "talker_config.num_hidden_layers", 8)
    change_json(folder / "config.json", "talker_config.intermediate_size", 21_000)
    (folder / WEIGHTS).unlink()
    shapes = talker_shapes(json.loads((folder / "config.json").read_text()))
    write_weights(folder, shapes, dtype=torch.float32, generator=torch.Generator().manual_seed(0))
    return folder


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loading_takes_little_more_memory_than_the_weights(large: Path, dtype: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(large), dtype],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    measured = json.loads(done.stdout)
    print(f"weights {measured['weights'] / 2**20:.0f} MiB, peak {measured['peak'] / 2**20:.0f} MiB")
    assert measured["weights"] > 100e6
    assert measured["peak"] < 1.35 * measured["weights"]


def test_a_refused_checkpoint_leaves_no_file_mapped(folder: Path) -> None:
    (folder / CODEC_WEIGHTS).unlink()
    save_file({"decoder.other": torch.zeros(1)}, folder / CODEC_WEIGHTS)
    refusal(folder)
    mapped = Path("/proc/self/maps")
    if mapped.exists():
        assert str(folder) not in mapped.read_text()
