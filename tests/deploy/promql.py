"""Runs in .venv-linters: reads PromQL expressions as a JSON list and prints the metrics and labels that each names."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import promql_parser


def nodes(expression: Any) -> Iterator[Any]:
    yield expression
    for name in ("lhs", "rhs", "expr", "args", "vector_selector"):
        inner = getattr(expression, name, None)
        for one in inner if isinstance(inner, list) else [inner] if inner is not None else []:
            yield from nodes(one)


def described(text: str) -> dict[str, list[str]]:
    metrics, labels = set(), set()
    for node in nodes(promql_parser.parse(text)):
        if isinstance(node, promql_parser.VectorSelector):
            metrics.add(node.name)
            labels |= {matcher.name for matcher in node.matchers.matchers}
        elif isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            labels |= set(node.modifier.labels)
    return {"metrics": sorted(metrics), "labels": sorted(labels)}


if __name__ == "__main__":
    json.dump([described(text) for text in json.load(sys.stdin)], sys.stdout)
