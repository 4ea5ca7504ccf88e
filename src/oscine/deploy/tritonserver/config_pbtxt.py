"""Writes a model's config.pbtxt."""

from __future__ import annotations

from collections.abc import Iterable

from oscine.deploy.tritonserver.tensors import TensorSpec

MARK = "# Written by `oscine triton`, which replaces it."


def config_pbtxt(
    name: str,
    inputs: Iterable[TensorSpec],
    outputs: Iterable[TensorSpec],
    *,
    about: str,
    backend: str = "python",
    instances: int = 1,
    kind: str = "KIND_CPU",
    decoupled: bool = False,
    max_batch_size: int = 0,
    queue_delay_us: int | None = None,
) -> str:
    """`queue_delay_us`: how long a request may wait for others to share its batch."""
    lines = [
        MARK,
        f"# {about}",
        f'name: "{name}"',
        f'backend: "{backend}"',
        f"max_batch_size: {max_batch_size}",
        *(["model_transaction_policy { decoupled: true }"] if decoupled else []),
        *_tensors("input", inputs),
        *_tensors("output", outputs),
        f"instance_group [ {{ kind: {kind} count: {instances} }} ]",
    ]
    if queue_delay_us is not None:
        lines.append(f"dynamic_batching {{ max_queue_delay_microseconds: {queue_delay_us} }}")
    return "\n".join(lines) + "\n"


def _tensors(section: str, specs: Iterable[TensorSpec]) -> list[str]:
    lines = []
    for spec in specs:
        dims = ", ".join(map(str, spec.dims))
        optional = " optional: true" if spec.optional else ""
        lines.append(f"  # {spec.about}")
        lines.append(f'  {{ name: "{spec.name}" data_type: TYPE_{spec.datatype} dims: [ {dims} ]{optional} }},')
    lines[-1] = lines[-1].removesuffix(",")
    return [f"{section} [", *lines, "]"]
