"""The CUDA backend without a GPU: prefill, decode step and codec run in Triton's interpreter, on tiny shapes.

Graphs are off, so the same kernels run one by one. tests/runner/cuda/test_backend.py compares both on a GPU.
"""

import numpy as np
import pytest
import torch

from oscine.model.config import ModelConfig, read_config
from oscine.model.speech_model import SpeechModel
from oscine.request import DrawParams, SamplingParams
from oscine.runner.backend import Backend, BackendOptions
from oscine.runner.memory_budget import MemoryBudget, plan_memory
from oscine.runner.runner import SlotAssignment
from oscine.runner.slot_runner import SlotRunner
from oscine.runner.torch_backend import TorchBackend
from tests.conftest import CheckpointMaker
from tests.reference.generate import prefill
from tests.reference.kv_cache import DenseKVCache
from tests.runner.tiny_model import CODES, random_prompt, tiny_model

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("runs on a CPU, in Triton's interpreter", allow_module_level=True)

from oscine.runner.cuda.backend import CudaBackend
from oscine.runner.cuda.codec import CudaCodec

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::RuntimeWarning")]  # of NaN, in NumPy

# Weights whose draws all have a wide margin, so that bf16 draws the codes of fp32: greedy choices win by 5 % of the
# logit, random draws are 2.8 % of the probability away from the next code.
SEED = 296
FRAMES = 2
GREEDY = DrawParams(greedy=True)
SAMPLING = (SamplingParams(GREEDY, GREEDY, max_new_tokens=40), SamplingParams(seed=5, max_new_tokens=40))
PROMPTS = (random_prompt(5, 0), random_prompt(11, 1))


@pytest.fixture(scope="module")
def config(small_checkpoints: CheckpointMaker) -> ModelConfig:
    return read_config(small_checkpoints("1b7", "custom_voice"))


@pytest.fixture(scope="module")
def model(config: ModelConfig) -> SpeechModel:
    return tiny_model(config, torch.bfloat16, SEED)


@pytest.fixture(scope="module")
def exact(config: ModelConfig) -> SpeechModel:
    """The same weights in fp32."""
    return tiny_model(config, torch.float32, SEED)


def budget(model: SpeechModel) -> MemoryBudget:
    return plan_memory(
        model.config, slots=2, positions_per_slot=64, positions_total=128, element_bytes=2, available_bytes=None,
        text_capacity=16,
    )  # fmt: skip


def admitted(backend: Backend, slots: tuple[int, ...]) -> SlotRunner:
    runner = SlotRunner(backend)
    for slot in slots:
        runner.admit(SlotAssignment(slot, PROMPTS[slot], SAMPLING[slot]))
    runner.flush_admissions()
    return runner


@pytest.fixture(scope="module")
@torch.inference_mode()
def backend(model: SpeechModel) -> CudaBackend:
    """One batch size, 2: a tick of one slot has a padding row. All memory that a stream may find holds NaN, as if
    an earlier one had left it."""
    backend = CudaBackend(model, budget(model), BackendOptions(frame_sizes=(), graphs=False))
    step, codec = backend.step, backend.codec
    assert isinstance(codec, CudaCodec)
    buffers = [value for name, value in vars(step).items() if name in ("hidden", "rest_logits") or name[0] == "_"]
    tables = (step._first_table, *step.rope, *step._rest_rope)
    left = [value for value in buffers if isinstance(value, torch.Tensor) and all(value is not one for one in tables)]
    left += [backend.kv.keys, backend.kv.values, backend.state.inputs, codec.state.keys, codec.state.values]
    for tensor in (*left, *codec._buffers, step.operations._scratch.partial, step.operations._normed):
        if tensor.is_floating_point():
            tensor.fill_(float("nan"))
    return backend


@pytest.fixture(scope="module")
def frames(backend: CudaBackend) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes [frames, 2, 16] and PCM of both prompts in a batch, and the hidden states after the first frame."""
    runner = admitted(backend, (0, 1))
    first = runner.collect(runner.launch([0, 1]))
    hidden = backend.step.hidden.float().numpy().copy()
    outputs = [first, *(runner.collect(runner.launch([0, 1])) for _ in range(FRAMES - 1))]
    assert not any(output.failed.any() for output in outputs)
    for slot in (0, 1):
        runner.release(slot)
    return np.stack([output.codes for output in outputs]), np.stack([output.pcm for output in outputs]), hidden


def test_the_codes_are_those_of_the_torch_backend(exact: SpeechModel, frames) -> None:
    runner = admitted(TorchBackend(exact, budget(exact)), (0, 1))
    expected = [runner.collect(runner.launch([0, 1])).codes for _ in range(FRAMES)]
    np.testing.assert_array_equal(frames[0], np.stack(expected))


def test_prompts_that_run_in_a_frame_change_no_bit(backend: CudaBackend, frames) -> None:
    """A prompt runs in its own first frame; then another one in the second frame, which reads the first's keys."""
    codes, pcm, hidden = frames
    runner = SlotRunner(backend)
    runner.admit(SlotAssignment(0, PROMPTS[0], SAMPLING[0]))
    alone = runner.collect(runner.launch([0]))
    np.testing.assert_array_equal(backend.step.hidden[0].float().numpy(), hidden[0])
    np.testing.assert_array_equal(alone.codes, codes[0, :1])
    runner.admit(SlotAssignment(1, PROMPTS[1], SAMPLING[1]))
    both = runner.collect(runner.launch([1, 0]))
    np.testing.assert_array_equal(both.codes, [codes[0, 1], codes[1, 0]])
    np.testing.assert_array_equal(both.pcm[0], pcm[0, 1])
    for slot in (0, 1):
        runner.release(slot)


def test_the_audio_is_that_of_the_plain_codec(exact: SpeechModel, frames) -> None:
    codes, pcm, _ = frames
    known = torch.from_numpy(codes).transpose(0, 1).clamp(max=exact.codec.dequantizer.codebook_size - 1)
    truth = exact.codec.decode_whole(known).numpy()
    error = pcm.transpose(1, 0, 2).reshape(2, -1) / 32767 - truth
    assert np.linalg.norm(error) < 0.02 * np.linalg.norm(truth)  # tests/runner/cuda/test_codec.py explains the number


@torch.inference_mode()
def test_the_hidden_states_are_as_close_to_fp32_as_plain_bf16(model: SpeechModel, exact: SpeechModel, frames) -> None:
    for slot, prompt in enumerate(PROMPTS):
        truth, plain = (last_hidden(plain_model, prompt) for plain_model in (exact, model))
        assert relative_error(frames[2][slot], truth) < 1.3 * relative_error(plain, truth) + 1e-3


def last_hidden(model: SpeechModel, prompt) -> np.ndarray:
    rows = model.prompt_rows(prompt)[None]
    cache = DenseKVCache(model.config.talker.stack, 1, rows.shape[1], like=rows)
    return prefill(model, rows, [prompt.rows], cache)[0].float().numpy()


def relative_error(actual: np.ndarray, truth: np.ndarray) -> float:
    return float(np.linalg.norm(actual - truth) / np.linalg.norm(truth))


def test_a_row_alone_gives_the_bits_of_the_row_in_a_batch(backend: CudaBackend, frames) -> None:
    """The slot was used before, and the second row is padding."""
    codes, pcm, hidden = frames
    runner = admitted(backend, (1,))
    output = runner.collect(runner.launch([1]))
    np.testing.assert_array_equal(backend.step.hidden[0].float().numpy(), hidden[1])
    np.testing.assert_array_equal(output.codes[0], codes[0, 1])
    np.testing.assert_array_equal(output.pcm[0], pcm[0, 1])
    runner.release(1)


@torch.inference_mode()
def test_a_row_that_is_not_finite_fails_alone(backend: CudaBackend, frames) -> None:
    codes, pcm, _ = frames
    runner = admitted(backend, (0, 1))
    backend.state.inputs[0] = float("nan")
    output = runner.collect(runner.launch([0, 1]))
    assert output.failed.tolist() == [True, False]
    assert (output.codes[0] >= 0).all() and (output.codes[0] < CODES).all()
    np.testing.assert_array_equal(output.codes[1], codes[0, 1])
    np.testing.assert_array_equal(output.pcm[1], pcm[0, 1])
    for slot in (0, 1):
        runner.release(slot)
