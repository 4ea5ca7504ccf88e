from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from oscine.config import EngineConfig
from oscine.engine.in_process import InProcessEngine
from oscine.model.config import ModelConfig, read_config
from oscine.prompt.builder import PromptBuilder
from oscine.prompt.tokenizer import Tokenizer
from tests.conftest import CheckpointMaker
from tests.engine.scripted_runner import PLAIN, ScriptedRunner

MakeEngine = Callable[..., InProcessEngine]


@pytest.fixture(scope="session")
def custom_voice(small_checkpoints: CheckpointMaker) -> Path:
    return small_checkpoints("1b7", "custom_voice")


@pytest.fixture(scope="session")
def tokenizer(custom_voice: Path) -> Tokenizer:
    return Tokenizer.from_folder(custom_voice)


@pytest.fixture(scope="session")
def model_config(custom_voice: Path) -> ModelConfig:
    return read_config(custom_voice)


@pytest.fixture
def make_engine(model_config: ModelConfig, tokenizer: Tokenizer) -> Iterator[MakeEngine]:
    """Makes engines over a scripted runner, in its virtual time. Keywords go to the runner, or give one."""
    made: list[InProcessEngine] = []

    def make(
        config: EngineConfig = PLAIN,
        slots: int = 4,
        runner: ScriptedRunner | None = None,
        launching: Callable[[], AbstractContextManager[None]] = nullcontext,
        **options: object,
    ) -> InProcessEngine:
        runner = runner or ScriptedRunner(slots, **options)  # type: ignore[arg-type]
        builder = PromptBuilder(model_config, tokenizer)
        made.append(InProcessEngine(runner, builder, tokenizer, config, clock=runner.clock, launching=launching))
        return made[-1]

    yield make
    for engine in made:
        engine.stop()
