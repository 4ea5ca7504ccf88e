"""The sampling fields of a request as those of a SpeechRequest. Each may stand in `extra_params` too."""

from __future__ import annotations

from typing import Any

from oscine.server.api.schemas import RANDOM_SEED, ExtraParams, VoiceOptions

_NAMES = tuple(ExtraParams.model_fields)


def given_seed(options: VoiceOptions) -> int | None:
    """Returns None for a random seed."""
    seed: int | None = _either(options, "seed")
    return None if seed == RANDOM_SEED else seed


def sampling_fields(options: VoiceOptions) -> dict[str, Any]:
    """Keyword arguments of SpeechRequest, without the seed. `do_sample: false` and a temperature of 0 choose the most
    likely code; for one of the two models alone, that is sampling from the best 1."""
    values = {name: _either(options, name) for name in _NAMES}
    values.pop("seed")
    samples, samples_rest = values.pop("do_sample"), values.pop("subtalker_dosample")
    greedy = values["temperature"] == 0 or samples is False
    greedy_rest = samples_rest is False or (greedy and not samples_rest) or values["subtalker_temperature"] == 0
    if greedy:
        values["temperature"] = None
        values["top_k"] = values["top_k"] if greedy_rest else 1
    if greedy_rest:
        values["subtalker_temperature"] = None
        values["subtalker_top_k"] = values["subtalker_top_k"] if greedy else 1
    return {**values, "greedy": True if greedy and greedy_rest else None}


def _either(options: VoiceOptions, name: str) -> Any:
    value = getattr(options, name)
    return getattr(options.extra_params, name) if value is None and options.extra_params else value
