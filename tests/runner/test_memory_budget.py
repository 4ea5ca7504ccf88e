import pytest
import torch

from oscine.errors import ConfigError
from oscine.model.config import read_config
from oscine.model.weights import load_model
from oscine.runner.memory_budget import DoesNotFitError, plain_memory_footprint, plan_memory
from oscine.runner.torch_backend import TorchCodec


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


def test_the_default_is_half_of_the_blocks_that_all_slots_could_use(config):
    budget = plan(config)
    assert budget.blocks == 4 * 8 // 2 + 1 and budget.blocks_per_slot == 8


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"positions_per_slot": 10**6}, "the checkpoint has 32768 positions"),
        ({"positions_total": 256}, "less than one slot may need"),
        ({"slots": 0}, "at least 1 slot"),
        ({"available_bytes": 2**20}, "use fewer positions"),
    ],
)
def test_impossible_settings_are_refused_before_weights_are_loaded(config, changed, message):
    with pytest.raises(ConfigError, match=message):
        plan(config, **changed)


def test_if_only_the_prefix_cache_is_too_large_the_error_says_which_size_fits(config):
    without = plan(config, prefix_bytes=0).total_bytes
    free = without + 3 * 2**20
    with pytest.raises(ConfigError, match=r"lower engine\.memory\.prefix_cache_mib from 256 to 3$"):
        plan(config, available_bytes=free)
    assert plan(config, available_bytes=free, prefix_bytes=3 * 2**20).total_bytes == free


def test_the_error_says_how_many_slots_fit(config):
    three = plan(config, slots=3, prefix_bytes=0).total_bytes
    for free, fitting, advice in ((three, 3, "use 3 slots or fewer positions"), (three - 1, 2, "use 2 slots or")):
        with pytest.raises(DoesNotFitError, match=advice) as refused:
            plan(config, slots=9, available_bytes=free, prefix_bytes=0)
        assert refused.value.fitting_slots == fitting
        assert plan(config, slots=fitting, available_bytes=free, prefix_bytes=0).total_bytes <= free


def test_one_slot_is_singular(config):
    with pytest.raises(ConfigError, match=r"^1 slot of up to 512 positions, .*; use fewer positions$"):
        plan(config, slots=1, available_bytes=2**20)
    assert plan(config).describe().startswith("4 slots of up to 512 positions, ")


def test_the_codec_state_is_as_large_as_planned(config, small_checkpoints):
    model = load_model(small_checkpoints("0b6", "custom_voice"), device=torch.device("cpu"))
    counters = 8 * (3 + 1)
    assert TorchCodec(model.codec, 3).nbytes == 4 * plain_memory_footprint(config, 4).codec_state_bytes + counters


def test_the_cuda_backend_plans_for_its_tables_and_a_reserve(config):
    pytest.importorskip("triton")
    from oscine.runner.cuda.backend import CudaBackend

    cuda, plain = plan(config, backend=CudaBackend), plan(config)
    text_table = 4 * config.talker.text_vocab * config.talker.stack.width
    assert plain.working_bytes == 0 and cuda.working_bytes >= text_table + 2**29
    assert cuda.total_bytes > plain.total_bytes + text_table
