"""Defines the keys of a result that a report reads. Other keys are allowed."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec


def keys(**types: Any) -> Any:
    """Returns the schema of a JSON object with these keys."""
    return msgspec.defstruct("Keys", types.items())


def some(item: Any) -> Any:
    """Returns the schema of a JSON array with at least one item."""
    return Annotated[list[item], msgspec.Meta(min_length=1)]


_NUMBER = float | None
_LAG = keys(p99=float) | None
_TIMES = keys(p50=_NUMBER, p95=_NUMBER) | None
_ROW = keys(
    load=keys(kind=str, value=float),
    requests=int,
    succeeded=int,
    inaudible=int,
    failures=dict,
    audio_s=keys(mean=_NUMBER) | None,
    x_real_time=_NUMBER,
    requests_per_s=_NUMBER,
    first_audio_ms=_TIMES,
    audible_ms=_TIMES,
    e2e_ms=_TIMES,
    underruns=keys(applicable=int, requests=int, share_over_100_ms=_NUMBER, worst_deficit_ms=_NUMBER),
    send_lag_ms=_LAG,
    timelines=dict,
    client=keys(loop_lag_ms=_LAG, starved_share=_NUMBER),
)
_SEARCH = keys(rate_per_s=_NUMBER, limits=keys(figure=str, p95_ms=_NUMBER, underrun_ms=_NUMBER)) | None
ORIGIN = {"name": str, "date": str, "commit": str, "command": str, "machine": str}
RESULT = keys(
    **ORIGIN,
    versions=keys(oscine=str, python=str),
    figures=msgspec.defstruct(
        "Figures",
        [
            ("target", keys(preset=str, transport=str)),
            ("workload", keys(name=str)),
            ("loads", some(_ROW)),
            ("search", _SEARCH, None),
            ("price_per_hour", float | None, None),
        ],
    ),
)
