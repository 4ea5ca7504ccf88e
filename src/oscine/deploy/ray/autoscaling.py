"""How many replicas Ray should run: as many as the running streams need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

# The metric that each replica reports: its streams, as a share of those that it can run in real time.
LOAD = "oscine_load"


class LoadPolicy:
    """Keeps the load of each replica near `target_load`. Ray applies the bounds and delays of its `autoscaling_config`.

    Ray's own policy counts open requests. That would count WebSocket sessions that are silent, and needs a number of
    requests per replica that depends on the GPU; the replica knows its own capacity.
    """

    def __init__(self, target_load: float = 0.7) -> None:
        if not 0 < target_load <= 1:
            raise ValueError(f"target_load must be above 0 and at most 1, got {target_load}")
        self._target_load = target_load

    def __call__(self, context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
        loads = (context.aggregated_metrics or {}).get(LOAD, {})
        return sum(loads.values()) / self._target_load, {}
