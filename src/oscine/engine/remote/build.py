"""The build function of the server's workers. The front end, which has no torch, sends its name; a worker imports
nothing else before torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oscine.config import EngineConfig
from oscine.process.child import importing
from oscine.types import ReportProgress

if TYPE_CHECKING:
    from oscine.engine.in_process import InProcessEngine


def build(folder: str, config: EngineConfig, device: str, dtype: str, progress: ReportProgress) -> InProcessEngine:
    with importing():
        from oscine.model.device import begin_context

        begin_context(device)
        from oscine.engine.build import build_engine

    return build_engine(folder, config, progress, device=device, dtype=dtype)  # type: ignore[arg-type]
