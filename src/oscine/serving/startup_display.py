"""Shows the start of a server: a progress bar on a terminal, log lines elsewhere, and what is ready."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Sequence
from functools import partial
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from oscine import __version__
from oscine.server.http.logs import log_fields
from oscine.serving.settings import Settings
from oscine.types import EngineStatus, ModelCard, ReportProgress

_log = logging.getLogger(__name__)
_LOOPBACK = ("127.0.0.1", "::1")


class StartupDisplay:
    """Shows the start of the server until it is ready: a progress bar on a terminal, log lines elsewhere."""

    def __init__(self, settings: Settings, console: Console) -> None:
        self._settings, self._console = settings, console
        self._several = len(settings.checkpoints) > 1
        self._begun_s = time.monotonic()
        self._notes: dict[str, list[str]] = {"memory": [], "warning": []}  # for the end
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True)
        self._live = console.is_terminal and settings.server.log_format == "console"

    def __enter__(self) -> Self:
        if self._live:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_bar()

    def _stop_bar(self) -> None:
        if self._live:  # otherwise it would print an empty line into a JSON log
            self._bar.stop()
        self._live = False  # engines that start later are reported in the log

    def planned(self, plan: str) -> None:
        """Shows how the memory is divided among the models."""
        if not self._live:
            _log.info("memory plan: %s", plan)
        self._notes["memory"] = [plan]

    def reporter(self, model: str, device: str) -> ReportProgress:
        """A callback for one engine: stages that begin with "memory: " or "warning: " are shown when it is ready."""
        name = model if device == "auto" else f"{model} on {device}"
        task = self._bar.add_task(f"{name}: starting", total=None)
        fields = {"model": model if self._several else None, "device": None if device == "auto" else device}
        last_stage = ""

        def report(stage: str, done: int, total: int) -> None:
            nonlocal last_stage
            kind, separator, note = stage.partition(": ")
            if separator and kind in self._notes:
                if note not in self._notes[kind]:
                    self._notes[kind].append(note)
            else:
                self._bar.update(task, description=f"{name}: {stage}", completed=done, total=total)
            if not self._live and stage != last_stage:
                level = logging.WARNING if kind == "warning" else logging.INFO
                _log.log(level, "%s", stage, extra=log_fields(**fields))
            last_stage = stage

        return report

    def ready(self, listener: socket.socket, models: Sequence[tuple[ModelCard, EngineStatus]]) -> None:
        self._stop_bar()
        host, port = listener.getsockname()[:2]
        # A wildcard address cannot be opened in a browser.
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
        url = f"{'https' if self._settings.server.tls_cert else 'http'}://{shown}:{port}"
        took_s = time.monotonic() - self._begun_s
        if self._settings.server.log_format == "json":
            for card, status in models:
                facts = {"url": url, "model": card.name, "slots": status.slots, "ready_s": round(took_s, 1)}
                _log.info("ready", extra=log_fields(**facts, device=describe_capacity(status)))
            return
        docs = f"API under {url}/v1, reference at {url}/docs"
        page = f"playground; {docs}" if self._settings.server.playground else docs
        # Texts, so that nothing in a name or an address is read as markup or as an emoji's name.
        show = partial(self._console.print, highlight=False, soft_wrap=True)
        show(Text.assemble("\n", (f"Oscine {__version__}", "bold green"), f" is ready after {took_s:.1f} s"))
        show(Text.assemble("  ", (url, "bold"), f"        {page}"))
        for card, status in models:
            show(Text(f"  model   {card.name} ({card.kind})"))
            show(Text(f"  device  {describe_capacity(status)}"))
        for note in self._notes["memory"][:1]:
            show(Text(f"  memory  {note}"))
        for note in self._notes["warning"]:
            show(Text(f"  warning {note}", "yellow"))
        if not self._settings.server.needs_key and host not in _LOOPBACK:
            show(
                Text("  warning anyone who reaches this address may use the server; --api-key requires a key", "yellow")
            )


def describe_capacity(status: EngineStatus) -> str:
    """Such as "NVIDIA H200, bfloat16, 128 slots" or "CPU, 2 threads, float32, about 6 streams in real time (measured at
    the start)": admission follows when other programs start or end."""
    streams = status.real_time_streams
    if streams and streams < status.slots:
        return (
            f"{status.device}, about {streams} stream{'s' if streams > 1 else ''} in real time (measured at the start)"
        )
    return f"{status.device}, {status.slots} slots"
