from __future__ import annotations

import pytest

from oscine.config import ChunkConfig, EngineConfig, GuardConfig, MemoryConfig, PacingConfig, TrimConfig
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
        ({"slot": 8}, "did you mean 'slots'"),
        ({"trim_silence": {"treshold_dbfs": -50}}, "did you mean 'trim_silence.threshold_dbfs'"),
        ({"chunks": 3}, "chunks must be a table"),
        ({"slots": 0}, "slots must be between 1"),
        ({"slots": "8"}, "slots has a value of the wrong kind"),
        ({"slots": True}, "wrong kind"),
        ({"graphs": 1}, "wrong kind"),
        ({"graph_buckets": []}, "graph_buckets"),
        ({"graph_buckets": [4, 2]}, "ascending"),
        ({"max_new_tokens": 1}, "max_new_tokens"),
        ({"chunks": {"first_chunk_frames": 9, "steady_chunk_frames": 3}}, "must not be below"),
        ({"memory": {"positions_per_slot": 512, "positions_total": 100}}, "could never run"),
        ({"guard": {"repetition_s": 1.0, "repetition_period_frames": 20}}, "shorter than"),
        ({"pacing": {"lead_s": float("nan")}}, "lead_s"),
    ],
)
def test_what_cannot_work_is_refused_and_named(values: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        EngineConfig.from_mapping(values)


@pytest.mark.parametrize("section", [ChunkConfig, PacingConfig, TrimConfig, GuardConfig, MemoryConfig, EngineConfig])
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
