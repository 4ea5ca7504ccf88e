"""The engine's figures among Triton's metrics, under the names of our own server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from oscine.deploy.tritonserver.backend import utils
from oscine.server.http.metrics import ENGINE_GAUGES
from oscine.speech.models import EngineFigures

_INTERVAL_S = 0.5


class EngineGauges:
    """Sets the gauges twice a second: Triton answers a scrape without asking its models."""

    def __init__(self, labels: Mapping[str, str], figures: Callable[[], EngineFigures]) -> None:
        self._figures = figures
        kind = utils().MetricFamily.GAUGE
        # Kept: Triton shows a family only as long as its object lives.
        self._families = [
            utils().MetricFamily(name=name, description=text, kind=kind) for name, text, _ in ENGINE_GAUGES
        ]
        self._gauges = [family.Metric(labels=dict(labels)) for family in self._families]
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="oscine-gauges", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._gauges.clear()
        self._families.clear()  # now: Triton's process crashes if they live until it exits

    def _run(self) -> None:
        while not self._stopping.wait(_INTERVAL_S):
            figures = self._figures()
            for gauge, (_, _, value) in zip(self._gauges, ENGINE_GAUGES, strict=True):
                gauge.set(float(value(figures)))
