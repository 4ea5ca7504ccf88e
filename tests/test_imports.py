"""Who may import whom, and who must do without torch. A new part of the package joins the table below."""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import oscine

PACKAGE = Path(oscine.__file__).parent
ROOT = "oscine"  # the package's own __init__: the version, and names that load on first use

# part -> parts of ours that it may import: server -> prompt -> engine -> runner -> model -> kernels, and never back.
ALLOWED: dict[str, set[str]] = {
    ROOT: set(),
    "types": set(),
    "kernels": set(),
    "cache": {"types"},
    "audio": {"types"},
    "voice": {"audio", "types"},
    "config": {"types"},
    "segmenter": set(),
    "utterance": {"types"},
    "settings": {"config", "types"},
    "narration": {"types", "utterance"},
    "model": {"kernels", "types"},
    "runner": {"model", "kernels", "cache", "config", "types"},
    "prompt": {"model", "audio", "cache", "types", "voice"},
    "engine": {ROOT, "prompt", "runner", "model", "audio", "config", "types", "voice"},
    "api": {"prompt", "runner", "model", "audio", "cache", "types", "voice"},
    # Is handed an engine, never makes one.
    "server": {ROOT, "audio", "config", "narration", "utterance", "segmenter", "types", "voice"},
    "bench": {ROOT, "audio", "types"},  # meets an engine only over the wire
    "evaluate": {"bench", "audio", "types"},  # as does this
    "model_bench": {"bench", "engine", "prompt", "runner", "model", "config", "types"},  # and this one never does
}
EVERYTHING = {"__main__", "commands"}
_TORCHLESS = (
    *("types", "config", "settings", "segmenter", "utterance", "narration", "audio", "voice", "cache"),
    *("commands.main", "commands.serve", "server.app", "commands.bench", "model_bench.command", "commands.evaluate"),
)
WITHOUT_TORCH = ("oscine", *(f"oscine.{part}" for part in _TORCHLESS))


def part_of(module: str) -> str:
    """ "oscine.model.codec" -> "model"."""
    return [*module.split("."), ROOT][1]


def runtime_imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Modules of ours that code imports, also inside functions; what only a type checker sees does not count."""
    for node in nodes:
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from runtime_imports(node.orelse)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == ROOT)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports name the whole path"
            if node.module == ROOT:  # `from oscine import types` takes a module, `import __version__` a name
                yield from (f"{ROOT}.{alias.name}" if exists(alias.name) else ROOT for alias in node.names)
            elif node.module and node.module.startswith(f"{ROOT}."):
                yield node.module
        else:
            yield from runtime_imports(ast.iter_child_nodes(node))


def exists(part: str) -> bool:
    return (PACKAGE / part).is_dir() or (PACKAGE / f"{part}.py").exists()


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def own_part(file: Path) -> str:
    inside = file.relative_to(PACKAGE)
    return ROOT if inside.name == "__init__.py" and len(inside.parts) == 1 else inside.parts[0].removesuffix(".py")


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_follow_the_arrows(file: Path) -> None:
    part = own_part(file)
    assert part in ALLOWED or part in EVERYTHING, f"{part!r} is new: say in ALLOWED what it may import"
    if part in EVERYTHING:
        return
    tree = ast.parse(file.read_text(encoding="utf-8"))
    imported = {part_of(module) for module in runtime_imports([tree])}
    forbidden = imported - ALLOWED[part] - {part}
    assert not forbidden, f"{part} may import {sorted(ALLOWED[part])}, not {sorted(forbidden)}"


def test_the_arrows_never_lead_back() -> None:
    TopologicalSorter(ALLOWED).prepare()  # raises CycleError


def test_imports_for_the_type_checker_do_not_count_and_others_do() -> None:
    source = """
if TYPE_CHECKING:
    from oscine.voice import Voice
else:
    import oscine.cache
def later():
    from oscine.api import Oscine
    from oscine import types, __version__
"""
    found = {part_of(module) for module in runtime_imports([ast.parse(source)])}
    assert found == {"cache", "api", "types", ROOT}


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_importing_this_does_not_pull_in_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
