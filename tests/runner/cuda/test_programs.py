"""The programs that frames launch. tests/kernels/cuda/test_chain.py compares them with the launches of a frame."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from checkpoint_shapes import SIZES, published_codec_config, published_config
from oscine.config import EngineConfig
from oscine.errors import ConfigError
from oscine.kernels.cuda.compiler import CompileError, CubinCache
from oscine.model.config import ModelConfig, read_config
from oscine.runner.cuda import programs as module
from oscine.runner.cuda.programs import (
    all_programs,
    codec_programs,
    decode_programs,
    make_cuda_operations,
    missing_on,
    supported,
    toolchain_failure,
)
from tests.conftest import CheckpointMaker
from tests.kernels.cuda.test_compiler import CountingCompiler


@pytest.fixture(params=SIZES)
def published(request: pytest.FixtureRequest, tmp_path: Path) -> ModelConfig:
    (tmp_path / "speech_tokenizer").mkdir()
    (tmp_path / "config.json").write_text(json.dumps(published_config(request.param, "custom_voice")))
    (tmp_path / "speech_tokenizer" / "config.json").write_text(json.dumps(published_codec_config()))
    return read_config(tmp_path)


def test_published_checkpoints_are_supported(published: ModelConfig) -> None:
    assert supported(published)
    programs = decode_programs(published, (1, 8, 32, 128))
    assert len(programs) == len(set(programs)) and {program.name for program in programs} == {
        *("linear_few", "linear_tiled", "rms_norm", "tile_rows"),
        *("talker_attention", "predictor_attention", "sample"),
    }
    codec = codec_programs(published.codec.decoder.stack, (1, 8, 32, 128))
    assert {program.name for program in codec} == {"linear_few", "linear_tiled", "rms_norm", "window_attention"}


def test_other_gpus_and_shapes_are_refused(small_checkpoints: CheckpointMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    config, normed = read_config(small_checkpoints("1b7", "custom_voice")), torch.zeros(1)
    assert not supported(config)
    for capability, problem in (((8, 0), "this one has 8.0"), ((9, 0), "this one has others")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)  # noqa: B023
        assert problem in (missing_on(normed.device, config) or "")
        with pytest.raises(ConfigError, match=f"{problem}; use engine.kernels = 'triton'"):
            make_cuda_operations(config, (1,))(normed)


def test_programs_for_256_slots_are_compiled_at_the_start(published: ModelConfig) -> None:
    buckets = EngineConfig(slots=256).buckets
    assert buckets[-2:] == (128, 256)
    every = set(all_programs(published, buckets))
    for rows in (*buckets, 129, 200):  # a frame of 200 rows runs in the graph of 256
        size = next(bucket for bucket in buckets if bucket >= rows)
        assert set(all_programs(published, (size,))) <= every
    assert len(every) < 100


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine without a driver")
def test_a_toolchain_that_fails_names_what_is_missing(
    published: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_compiler() -> CubinCache:
        raise CompileError("no CUDA compiler: nvcc is not on the path; `pip install cuda-bindings`\na log")

    def failure_with(cache: Callable[[], CubinCache]) -> tuple[str, list[tuple[int, int]]]:
        monkeypatch.setattr(module, "default_cache", cache)
        steps: list[tuple[int, int]] = []
        device = torch.device("cpu")
        return toolchain_failure(published, device, (1, 8), lambda *step: steps.append(step)) or "", steps

    expected = "no CUDA compiler: nvcc is not on the path; `pip install cuda-bindings`"
    assert failure_with(no_compiler) == (expected, [])
    failure, steps = failure_with(lambda: CubinCache(tmp_path, CountingCompiler()))
    assert "there is no CUDA driver on this machine" in failure
    count = len(all_programs(published, (1, 8)))
    assert steps == [(done, count) for done in range(count + 1)], "everything is compiled before the kernels are chosen"
