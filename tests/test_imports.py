"""The direction of imports, and the modules that must not load torch. A new part of the package joins the table."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import oscine

PACKAGE = Path(oscine.__file__).parent
ROOT = "oscine"  # the package's own __init__: the version, and names that load on first use

# part -> parts that it imports: a request goes down only. Edges that no file uses are refused too.
ALLOWED: dict[str, set[str]] = {
    ROOT: set(),
    "commit": set(),
    "errors": set(),
    "kernels": set(),
    "process": {"errors"},
    "audio": {"errors", "process"},
    "config": {"audio"},
    "fields": {"errors"},
    "text": {"errors", "fields"},
    "voice": {"audio", "errors"},
    "request": {"audio", "errors", "fields", "text"},
    "types": {"audio", "errors", "request", "text", "voice"},
    "align": {"audio", "errors", "process", "text"},
    "speech": {"align", "audio", "config", "errors", "process", "request", "text", "types", "voice"},
    "speech_options": {"errors", "request", "voice"},
    "model": {"audio", "errors", "request", "text", "types"},
    "runner": {"audio", "errors", "kernels", "model", "process", "request", "types"},
    "export": {ROOT, "audio", "commit", "errors", "model"},
    "prompt": {"audio", "errors", "model", "request", "speech", "types", "voice"},
    "engine": {
        *("audio", "config", "errors", "model", "process", "prompt", "request", "runner", "speech", "types", "voice"),
    },
    # Simulates engines in virtual time, for `oscine plan`.
    "fleet": {"audio", "config", "engine", "errors", "request", "runner", "types"},
    "api": {
        *(
            "audio",
            "config",
            "engine",
            "errors",
            "model",
            "request",
            "speech",
            "speech_options",
            "text",
            "types",
            "voice",
        ),
    },
    # Gets an engine, never builds one.
    "server": {
        *(
            ROOT,
            "align",
            "audio",
            "config",
            "errors",
            "fields",
            "process",
            "request",
            "speech",
            "types",
            "voice",
        ),
    },
    # What `oscine serve` and deploy/ share.
    "serving": {
        *(ROOT, "audio", "config", "engine", "errors", "model", "process", "server", "speech", "types"),
    },
    "deploy": {
        *("api", "audio", "config", "engine", "errors", "export", "fields", "model", "process", "request"),
        *("server", "serving", "speech", "types", "voice"),
    },
    "commands": {
        *(ROOT, "align", "api", "audio", "deploy", "engine", "errors", "export", "fields", "fleet", "model", "process"),
        *("config", "request", "runner", "server", "serving", "speech", "text", "voice"),
    },
    "__main__": {"commands"},
}
_TORCHLESS = (
    *("types", "errors", "config", "speech_options", "voice", "export", "text.preparation", "audio.encoders"),
    *("speech.run", "speech.capabilities", "speech.events", "commands.main", "commands.serve", "server.app"),
)
WITHOUT_TORCH = ("oscine", *(f"oscine.{part}" for part in _TORCHLESS))
# module -> what it must not import, so that a server starts quickly: the front end spawns a worker before it loads
# anything but the command line, and the worker loads nothing of the front end.
QUICK = {
    "oscine.commands.main": ("numpy", "pydantic", "asyncio", "oscine.serving.settings"),
    "oscine.commands.serve": ("fastapi", "uvicorn", "huggingface_hub"),
    "oscine.engine.remote.worker": (
        "oscine.commands",
        "oscine.serving",
        "oscine.server",
        "huggingface_hub",
        "pydantic_settings",
        "torch",
    ),
}


def part_of(module: str) -> str:
    """ "oscine.model.codec" -> "model"."""
    return [*module.split("."), ROOT][1]


def runtime_imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Modules of ours that code imports, also inside functions, but not those for the type checker alone."""
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


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def parts_imported_by(file: Path) -> set[str]:
    return {part_of(module) for module in runtime_imports([tree_of(file)])}


def own_part(file: Path) -> str:
    inside = file.relative_to(PACKAGE)
    return ROOT if inside.name == "__init__.py" and len(inside.parts) == 1 else inside.parts[0].removesuffix(".py")


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_follow_the_table(file: Path) -> None:
    part = own_part(file)
    assert part in ALLOWED, f"{part!r} is new: say in ALLOWED what it may import"
    forbidden = parts_imported_by(file) - ALLOWED[part] - {part}
    assert not forbidden, f"{part} may import {sorted(ALLOWED[part])}, not {sorted(forbidden)}"


def test_no_edge_is_allowed_that_no_file_uses() -> None:
    used: dict[str, set[str]] = {part: set() for part in ALLOWED}
    for file in files():
        used.setdefault(own_part(file), set()).update(parts_imported_by(file))
    unused = {part: sorted(allowed - used[part]) for part, allowed in ALLOWED.items() if allowed - used[part]}
    assert not unused


# They know an engine only over the wire; they share audio files, errors and levels with it.
MEASURING = {"oscine_bench": set(), "oscine_eval": {"oscine_bench"}}


@pytest.mark.parametrize("package", MEASURING)
def test_the_measuring_packages_do_not_import_the_engine(package: str) -> None:
    shared = {
        "oscine",
        "oscine.audio.clips",
        "oscine.commit",
        "oscine.errors",
        "oscine.audio.pcm",
        "oscine.process.child",
        "oscine.speech.events",
        "oscine.types",
    }
    for file in sorted((PACKAGE.parent / package).rglob("*.py")):
        for node in ast.walk(tree_of(file)):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            if module and module.split(".")[0].startswith("oscine"):
                own = module.split(".")[0] in {package, *MEASURING[package]}
                assert own or module in shared, f"{file.name} imports {module}"


def test_the_parts_form_no_cycle() -> None:
    TopologicalSorter(ALLOWED).prepare()  # raises CycleError


def test_the_modules_form_no_cycle_even_for_the_type_checker() -> None:
    graph: dict[str, set[str]] = {}
    for file in files():
        names = [ROOT, *file.relative_to(PACKAGE).with_suffix("").parts]
        module = ".".join(names[:-1] if names[-1] == "__init__" else names)
        graph[module] = set(all_imports(tree_of(file))) - {module, ROOT}
    TopologicalSorter({module: imported & graph.keys() for module, imported in graph.items()}).prepare()


def test_files_and_folders_of_a_package_form_no_cycle() -> None:
    """Also between neighbors: server/http imports nothing from server/api, which imports from it."""
    packages: dict[tuple[str, ...], dict[str, set[str]]] = {}
    for file in files():
        own = tuple(name for name in file.relative_to(PACKAGE).with_suffix("").parts if name != "__init__")
        for module in all_imports(tree_of(file)):
            other = tuple(module.split(".")[1:])
            shared = next((at for at, (a, b) in enumerate(zip(own, other, strict=False)) if a != b), None)
            if shared is not None and module.startswith(f"{ROOT}."):
                siblings = packages.setdefault(own[:shared], {})
                siblings.setdefault(own[shared], set()).add(other[shared])
    assert "http" in packages["server",]["api"]
    for package, graph in packages.items():
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            pytest.fail(f"{'/'.join(package)}: {' -> '.join(error.args[1])}")


OTHERS = ("benchmarks", "tools", "training", "examples", "src/oscine_bench", "src/oscine_eval")


def other_modules() -> dict[str, Path]:
    """Modules outside the package by the names that others import them by: those of tools/ and training/ bare."""
    found: dict[str, Path] = {}
    for folder in OTHERS:
        base = PACKAGE.parents[1] / folder
        prefix = () if folder in ("tools", "training", "examples") else (base.name,)
        for file in sorted(base.rglob("*.py")):
            names = [*prefix, *file.relative_to(base).with_suffix("").parts]
            found[".".join(names[:-1] if names[-1] == "__init__" and names[1:] else names)] = file
    return found


def imported_names(tree: ast.AST) -> Iterator[str]:
    """Every module that a file may import, in functions too: of `from a import b` both a.b and a."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def test_the_modules_of_other_folders_form_no_cycle() -> None:
    """Neither within a folder nor across them."""
    found = other_modules()
    assert {"benchmarks.report", "demo_card", "oscine_bench.report"} <= found.keys()
    graph = {name: {*imported_names(tree_of(file))} & (found.keys() - {name}) for name, file in found.items()}
    assert "benchmarks.report_checks" in graph["benchmarks.report"] and "demo_card" in graph["benchmarks.report"]
    TopologicalSorter(graph).prepare()  # raises CycleError


def all_imports(tree: ast.AST) -> Iterator[str]:
    """Modules of ours that a file imports, those for the type checker included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == ROOT:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                path = PACKAGE.joinpath(*full.split(".")[1:])
                yield full if path.is_dir() or path.with_suffix(".py").exists() else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_imports_for_the_type_checker_do_not_count_and_others_do() -> None:
    source = """
if TYPE_CHECKING:
    from oscine.voice import Voice
else:
    import oscine.audio.clips
def later():
    from oscine.api import Oscine
    from oscine import types, __version__
"""
    found = {part_of(module) for module in runtime_imports([ast.parse(source)])}
    assert found == {"audio", "api", "types", ROOT}


def test_importing_these_modules_does_not_import_torch() -> None:
    code = """
import importlib, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
    assert "torch" not in sys.modules, module
"""
    done = subprocess.run([sys.executable, "-c", code, *WITHOUT_TORCH], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", QUICK)
def test_a_server_starts_without_what_it_needs_later(module: str) -> None:
    code = "import importlib, sys; importlib.import_module(sys.argv[1]); print({*sys.argv[2:]} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code, module, *QUICK[module]], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stdout + done.stderr


# 400 and 500 are also numbers of other things.
_STATUS = re.compile(
    r"\b(Raises|get|gets) [45]\d\d\b|\b(40[13489]|41[35]|429|431|503)\b|\bstatus_code\b|\bHTTPException\b"
)
# What takes a thread of a pool that all share, or makes one; where is another question than whether.
_EXECUTOR = re.compile(
    r"to_thread|run_in_executor\(None|run_in_threadpool|FileResponse|StaticFiles|BackgroundTask|"
    r"loop\(\)\.getaddrinfo"
)
_THREADS = re.compile(r"ThreadPoolExecutor\(")


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_http_stays_in_the_server_and_requests_out_of_the_default_pool(file: Path) -> None:
    """Statuses are the server's; work on threads has named pools with limits (process/resources.py)."""
    source = file.read_text(encoding="utf-8")
    if own_part(file) != "server":
        assert not _STATUS.search(source)
    if own_part(file) != "deploy":
        assert not _EXECUTOR.search(source)
    if own_part(file) in ("server", "speech", "audio"):
        assert not _THREADS.search(source)


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_endpoints_and_dependencies_are_coroutines(file: Path) -> None:
    """The framework runs others in a pool that all share."""
    if own_part(file) != "server":
        return
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.FunctionDef):
            given = [ast.unparse(one) for one in node.decorator_list]
            assert not [one for one in given if re.match(r"(app|router)\.(get|post|put|delete|patch|websocket)\b", one)]
        elif isinstance(node, ast.Call):
            assert "Depends" not in ast.unparse(node.func)


def test_an_error_is_raised_without_a_status_and_answered_with_one() -> None:
    """ApiError is what a client is sent; only what renders errors knows it, and only one file makes it."""
    sources = {file.relative_to(PACKAGE).as_posix(): file.read_text(encoding="utf-8") for file in files()}
    assert len([name for name, source in sources.items() if re.search(r"\bApiError\b", source)]) <= 12
    assert [name for name, source in sources.items() if "ApiError(" in source] == ["server/http/errors.py"]


def test_a_class_name_stands_for_one_class() -> None:
    found: dict[str, list[str]] = {}
    for file in files():
        for node in tree_of(file).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(str(file.relative_to(PACKAGE)))
    twice = {name: where for name, where in found.items() if len(where) > 1}
    assert not twice
