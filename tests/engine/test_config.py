from __future__ import annotations

import pytest

from oscine.config import ChunkConfig, EngineConfig, MemoryConfig, PacingConfig, RunawayConfig, TrimConfig, WorkerConfig
from oscine.types import ConfigError


def test_the_defaults_work_and_survive_the_journey_through_a_mapping() -> None:
    config = EngineConfig()
    assert EngineConfig.from_mapping(config.as_mapping()) == config
    assert EngineConfig.from_mapping({}) == config


def test_a_mapping_changes_what_it_names() -> None:
    config = EngineConfig.from_mapping({"slots": 8, "chunks": {"steady_chunk_frames": 4}, "graph_buckets": [1, 8]})
    assert (config.slots, config.chunks, config.graph_buckets) == (8, ChunkConfig(steady_chunk_frames=4), (1, 8))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"slot": 8}, "did you mean 'engine.slots'"),
        ({"trim_silence": {"treshold_dbfs": -50}}, "did you mean 'engine.trim_silence.threshold_dbfs'"),
        ({"chunks": 3}, "engine.chunks must be a table of names to values, got 3"),
        ({"slots": 0}, "engine.slots must be between 1 and 4096, got 0"),
        ({"slots": 10**400}, "engine.slots must be between 1 and 4096, got 1000"),
        ({"slots": "8"}, "engine.slots must be a whole number, got '8'"),
        ({"slots": True}, "engine.slots must be a whole number, got True"),
        ({"slots": 8.0}, "engine.slots must be a whole number, got 8.0"),
        ({"graphs": 1}, "engine.graphs must be true or false, got 1"),
        ({"guard": {"enabled": "no"}}, "engine.guard.enabled must be true or false, got 'no'"),
        ({"pacing": {"lead_s": "1"}}, "engine.pacing.lead_s must be a number, got '1'"),
        ({"graph_buckets": ["a"]}, "engine.graph_buckets must be a list of whole numbers"),
        ({"graph_buckets": 4}, "engine.graph_buckets must be a list of whole numbers, got 4"),
        ({"graph_buckets": []}, "engine.graph_buckets must be ascending"),
        ({"graph_buckets": [4, 2]}, "ascending batch sizes from 1 to 4096, each once, got"),
        ({"graph_buckets": [0, 1]}, "ascending"),
        ({"graph_buckets": [1, 4097]}, "ascending"),
        ({"max_new_tokens": 1}, "engine.max_new_tokens must be between 2"),
        ({"chunks": {"first_chunk_frames": 9, "steady_chunk_frames": 3}}, "engine.chunks.steady_chunk_frames .* below"),
        ({"memory": {"positions_per_slot": 512, "positions_total": 100}}, "engine.memory.positions_total .* never run"),
        (
            {"guard": {"repetition_s": 1.0, "repetition_period_frames": 20}},
            "engine.guard.repetition_period_frames .* shorter",
        ),
        ({"pacing": {"lead_s": float("nan")}}, "engine.pacing.lead_s"),
    ],
)
def test_what_cannot_work_is_refused_and_named(values: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        EngineConfig.from_mapping(values)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"submit_s": 1e10}, r"process.submit_s must be between 0.01 and 86400, got 10000000000\.0"),
        ({"terminate_s": 0}, "process.terminate_s"),
        ({"backoff_s": -3}, "process.backoff_s must be between 0 and 86400, got -3"),
        ({"max_backoff_s": -1.0}, "process.max_backoff_s"),
        ({"max_restarts": -1}, "process.max_restarts must be between 0 and 1000, got -1"),
        ({"max_restarts": 2000}, "process.max_restarts"),
        ({"restarts_window_s": -1.0}, "process.restarts_window_s"),
        ({"delivery_threads": 0}, "process.delivery_threads"),
    ],
)
def test_times_and_counts_of_the_process_have_bounds(values: dict[str, float], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        WorkerConfig.from_mapping(values)


@pytest.mark.parametrize("section", [ChunkConfig, PacingConfig, TrimConfig, RunawayConfig, MemoryConfig, EngineConfig])
def test_settings_are_never_written_later(section: type) -> None:
    settings = section()
    with pytest.raises(AttributeError):
        setattr(settings, next(iter(section.__dataclass_fields__)), 1)


@pytest.mark.parametrize(
    ("slots", "buckets"),
    [(1, (1,)), (5, (1, 2, 4, 8)), (32, (1, 2, 4, 8, 16, 32)), (200, (1, 2, 4, 8, 16, 32, 64, 128, 200))],
)
def test_buckets_reach_exactly_to_the_one_that_holds_every_slot(slots: int, buckets: tuple[int, ...]) -> None:
    assert EngineConfig(slots=slots).buckets == buckets
