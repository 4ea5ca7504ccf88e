from __future__ import annotations

import dataclasses

import pytest

from oscine.config import (
    ChunkConfig,
    EngineConfig,
    MemoryConfig,
    PacingConfig,
    RunawayConfig,
    ServerConfig,
    TrimConfig,
    WorkerConfig,
)

SECTIONS = [
    ChunkConfig,
    PacingConfig,
    TrimConfig,
    RunawayConfig,
    MemoryConfig,
    EngineConfig,
    WorkerConfig,
    ServerConfig,
]


@pytest.mark.parametrize("section", SECTIONS)
def test_sections_are_frozen_and_every_setting_is_described(section: type) -> None:
    settings = section()
    for field in dataclasses.fields(settings):
        with pytest.raises(AttributeError):
            setattr(settings, field.name, 1)
        nested = dataclasses.is_dataclass(getattr(settings, field.name))
        assert nested or section.__pydantic_fields__[field.name].description, field.name


def test_nested_mappings_become_sections() -> None:
    config = EngineConfig(slots=8, chunks={"steady_chunk_frames": 4}, graph_buckets=[1, 8])  # type: ignore[arg-type]
    assert (config.slots, config.chunks, config.graph_buckets) == (8, ChunkConfig(steady_chunk_frames=4), (1, 8))


@pytest.mark.parametrize(
    ("slots", "buckets"),
    [
        (1, (1,)),
        (5, (1, 2, 4, 8)),
        (32, (1, 2, 4, 8, 16, 32)),
        (100, (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)),
        (200, (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 200)),
    ],
)
def test_buckets_end_with_the_first_that_holds_every_slot(slots: int, buckets: tuple[int, ...]) -> None:
    assert EngineConfig(slots=slots).buckets == buckets
