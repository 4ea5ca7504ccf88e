import pytest
import torch

from oscine.model.config import read_config
from oscine.model.weights import load_model
from oscine.runner.memory_budget import codec_state_bytes, plan_memory
from oscine.runner.torch.codec import TorchCodec
from oscine.types import ConfigError


@pytest.fixture(scope="module")
def config(small_checkpoints):
    return read_config(small_checkpoints("0b6", "custom_voice"))


def plan(config, **changed):
    usual = {
        "slots": 4,
        "positions_per_slot": 512,
        "positions_total": None,
        "element_bytes": 4,
        "available_bytes": None,
    }
    return plan_memory(config, **(usual | changed))


def test_half_of_all_that_slots_could_need_is_the_default(config):
    budget = plan(config)
    assert budget.pages == 4 * 8 // 2 + 1 and budget.pages_per_slot == 8


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"positions_per_slot": 10**6}, "the checkpoint has 32768 positions"),
        ({"positions_total": 256}, "fewer than one slot may need"),
        ({"slots": 0}, "at least 1 slot"),
        ({"available_bytes": 2**20}, "use fewer slots"),
    ],
)
def test_what_cannot_work_is_refused_before_weights_load(config, changed, said):
    with pytest.raises(ConfigError, match=said):
        plan(config, **changed)


def test_where_only_the_prefix_cache_does_not_fit_it_is_named_with_what_fits(config):
    without = plan(config, prefix_bytes=0).total_bytes
    free = without + 3 * 2**20
    with pytest.raises(ConfigError, match=r"lower engine\.memory\.prefix_cache_mib from 256 to 3$"):
        plan(config, available_bytes=free)
    assert plan(config, available_bytes=free, prefix_bytes=3 * 2**20).total_bytes == free
    with pytest.raises(ConfigError, match=r"use fewer slots \(now 4\) or positions$"):
        plan(config, available_bytes=without - 1)


def test_one_slot_is_said_as_one(config):
    with pytest.raises(ConfigError, match=r"^1 slot of up to 512 positions, .*; use fewer positions$"):
        plan(config, slots=1, available_bytes=2**20)
    assert plan(config).describe().startswith("4 slots of up to 512 positions, ")


def test_the_codec_state_is_as_large_as_planned(config, small_checkpoints):
    model = load_model(small_checkpoints("0b6", "custom_voice"), device=torch.device("cpu"))
    counters = 8 * (3 + 1)
    assert TorchCodec(model.codec, 3).nbytes == 4 * codec_state_bytes(config, 4) + counters


def test_kernels_plan_for_their_tables_and_a_reserve(config):
    with_kernels, without = plan(config, kernels=True), plan(config)
    text_table = 4 * config.talker.text_vocab * config.talker.stack.width
    assert without.working_bytes == 0 and with_kernels.working_bytes >= text_table + 2**29
    assert with_kernels.total_bytes > without.total_bytes + text_table
