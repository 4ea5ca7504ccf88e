"""Draws which parts of a package import which, from the entry points down.

    python tools/import_graph.py src/oscine docs/images/imports-after.svg

Parts are the modules and folders of the package. Imports for the type checker count. An arrow that goes up is red: it
closes a cycle.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path

HIDDEN = {"types", "errors", "frames"}  # imported nearly everywhere


def part_imports(package: Path) -> dict[str, set[str]]:
    """part -> parts that it imports."""
    parts = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    imports: dict[str, set[str]] = {part: set() for part in parts - {"__init__", "__main__", *HIDDEN}}
    for file in package.rglob("*.py"):
        part = file.relative_to(package).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.ImportFrom) and node.module == package.name:
                names = [f"{package.name}.{alias.name}" for alias in node.names]
            for name in names:
                root, _, rest = name.partition(".")
                other = rest.partition(".")[0]
                if root == package.name and part in imports and other in imports and other != part:
                    imports[part].add(other)
    return imports


def layers(imports: dict[str, set[str]]) -> tuple[dict[str, int], set[tuple[str, str]]]:
    """part -> layer, 0 at the bottom; and the edges that had to be left out because they close a cycle."""
    depth: dict[str, int] = {}
    back: set[tuple[str, str]] = set()

    def visit(part: str, above: tuple[str, ...]) -> int:
        if part not in depth:
            below = []
            for other in sorted(imports[part]):
                if other in (*above, part):
                    back.add((part, other))
                else:
                    below.append(visit(other, (*above, part)))
            depth[part] = 1 + max(below, default=-1)
        return depth[part]

    for part in sorted(imports, key=lambda part: -len(imports[part])):
        visit(part, ())
    return depth, back


def draw(package: Path, out: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    imports = part_imports(package)
    depth, back = layers(imports)
    rows: dict[int, list[str]] = defaultdict(list)
    for part in sorted(depth):
        rows[depth[part]].append(part)
    figure, axes = pyplot.subplots(figsize=(10, 0.9 * len(rows) + 0.5))
    place = {
        part: ((index + 1) / (len(row) + 1) + 0.02 * (level % 2), level)
        for level, row in rows.items()
        for index, part in enumerate(row)
    }
    for part, others in imports.items():
        for other in others:
            color = "tab:red" if (part, other) in back or depth[other] >= depth[part] else "0.75"
            arrow = {"arrowstyle": "->", "color": color, "shrinkA": 12, "shrinkB": 12}
            axes.annotate("", xy=place[other], xytext=place[part], arrowprops=arrow)
    for part, (x, y) in place.items():
        axes.text(x, y, part, ha="center", va="center", bbox={"boxstyle": "round", "fc": "white", "ec": "0.4"})
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.axis("off")
    figure.savefig(out, bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
