"""Oscine installs on ordinary machines: requirements resolve for every platform, and the wheel speaks by itself.

These tests ask the package index; without a network they fail.
"""

import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import soundfile
import uv

import oscine
from install_torch import Source, choose, install, pinned_version, uv_environment
from run_pip import show_progress
from share_torch import share_torch

ROOT = Path(__file__).parent.parent
PLATFORMS = {
    "linux-x86_64": "x86_64-unknown-linux-gnu",
    "linux-aarch64": "aarch64-unknown-linux-gnu",
    "macos": "aarch64-apple-darwin",
    "windows": "x86_64-pc-windows-msvc",
}
PYTHONS = ("3.11", "3.12", "3.13")
SETS = {
    "user": (),
    "every-extra": ("--extra", "all", "--extra", "quality", "--extra", "ray"),
    "developer": ("--extra", "bench", "--group", "dev", "--group", "docs"),
}
# What a user gets resolves with every Python where every extra does, which includes it: once, for the names.
CASES = [case for case in product(SETS, PLATFORMS, PYTHONS) if case[0] != "user" or case[2] == PYTHONS[0]]
TEST_TOOLS = {"pytest", "hypothesis", "mypy", "ruff", "schemathesis", "playwright", "uv", "pre-commit"}


@dataclass(frozen=True)
class Resolution:
    """Names of the packages that would be installed, or the conflict."""

    packages: frozenset[str]
    conflict: str


@cache
def resolver_environment() -> dict[str, str]:
    # uv assumes macOS 13, and torch's wheels need 14.
    return uv_environment() | {"UV_PYTHON_DOWNLOADS": "never", "MACOSX_DEPLOYMENT_TARGET": "14.0"}


def resolve(arguments: Sequence[str], platform: str, python: str) -> Resolution:
    command = [uv.find_uv_bin(), "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
    # Wheels only: an ordinary machine has no compilers.
    command += ["--only-binary", ":all:", "--python-platform", PLATFORMS[platform], "--python-version", python]
    command += arguments
    done = subprocess.run(command, cwd=ROOT, env=resolver_environment(), capture_output=True, text=True)
    packages = frozenset(re.findall(r"^([\w.-]+)==", done.stdout, re.MULTILINE))
    return Resolution(packages, done.stderr if done.returncode else "")


@pytest.fixture(scope="module")
def resolutions() -> Mapping[tuple[str, str, str], Resolution]:
    def resolve_case(case: tuple[str, str, str]) -> Resolution:
        name, platform, python = case
        return resolve(["--constraint", "constraints.txt", *SETS[name], "pyproject.toml"], platform, python)

    with ThreadPoolExecutor(8) as pool:  # each waits for the index most of the time
        return dict(zip(CASES, pool.map(resolve_case, CASES), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "platform", "python"), CASES)
def test_requirements_resolve(
    resolutions: Mapping[tuple[str, str, str], Resolution], name: str, platform: str, python: str
) -> None:
    resolution = resolutions[name, platform, python]
    assert not resolution.conflict, f"{name} requirements for {platform}, Python {python}:\n{resolution.conflict}"
    assert "torch" in resolution.packages
    assert name == "developer" or not resolution.packages & TEST_TOOLS


@pytest.mark.slow
def test_a_triton_that_torch_does_not_accept_is_a_conflict(tmp_path: Path) -> None:
    pins = tmp_path / "pins.txt"
    pins.write_text("torch==2.13.0\ntriton==3.6.0; sys_platform == 'linux'\n")
    conflict = resolve([str(pins)], "linux-x86_64", "3.12").conflict
    assert "torch==2.13.0" in conflict and "triton" in conflict and "unsatisfiable" in conflict


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["linux-x86_64", "linux-aarch64"])
def test_a_cuda_build_of_torch_brings_the_compiler_of_the_cuda_kernels(platform: str, tmp_path: Path) -> None:
    """So they are no dependency of ours, which CPU machines would get too."""
    pin = tmp_path / "pin.txt"
    pin.write_text(f"torch==={pinned_version()}\n")
    packages = resolve([str(pin)], platform, "3.12").packages
    assert {"cuda-bindings", "nvidia-cuda-nvrtc", "triton"} <= packages


def test_linux_without_a_card_prefers_the_cpu_build() -> None:
    sources = choose("", "linux", None, "2.13.0").sources
    assert [(source.requirement, source.backend) for source in sources] == [
        ("torch==2.13.0+cpu", None),
        ("torch==2.13.0", "cpu"),
        ("torch===2.13.0", None),
    ]


def test_linux_with_a_card_gets_the_public_wheel() -> None:
    choice = choose("", "linux", "NVIDIA H200", "2.13.0")
    assert [source.requirement for source in choice.sources] == ["torch===2.13.0"]  # never a +cpu build
    assert "NVIDIA H200" in choice.reason


@pytest.mark.parametrize("platform", ["darwin", "win32"])
@pytest.mark.parametrize("wish", ["", "cpu"])
def test_macos_and_windows_get_the_public_wheel(platform: str, wish: str) -> None:
    assert [source.requirement for source in choose(wish, platform, None, "2.13.0").sources] == ["torch==2.13.0"]


@pytest.mark.parametrize(
    ("wish", "requirements", "backend"),
    [
        ("cuda", ["torch===2.13.0"], None),
        ("cu126", ["torch==2.13.0"], "cu126"),
        ("auto", ["torch==2.13.0"], "auto"),
        ("torch==2.11.0", ["torch==2.11.0"], None),
    ],
)
def test_the_user_may_choose_torch(wish: str, requirements: list[str], backend: str | None) -> None:
    choice = choose(wish, "linux", None, "2.13.0")
    assert [source.requirement for source in choice.sources] == requirements
    assert choice.sources[0].backend == backend and wish in choice.reason


def test_an_unknown_choice_of_torch_is_refused() -> None:
    with pytest.raises(SystemExit, match="TORCH=gpu is not known"):
        choose("gpu", "linux", None, "2.13.0")


def test_the_next_source_of_torch_is_tried_when_one_fails(capsys: pytest.CaptureFixture[str]) -> None:
    commands: list[Sequence[str]] = []

    def fail_twice(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
        commands.append(command)
        return "ERROR: No matching distribution" if len(commands) < 3 else None

    choice = choose("", "linux", None, "2.13.0")
    plain = [Source(source.requirement, source.name) for source in choice.sources]  # without uv
    source = install(type(choice)(choice.reason, tuple(plain)), fail_twice)
    assert source == plain[-1]
    assert [command[-1] for command in commands] == [source.requirement for source in plain]
    assert "No matching distribution" in capsys.readouterr().out


def test_no_source_of_torch_that_works_is_an_error() -> None:
    with pytest.raises(SystemExit, match="ERROR: no route"):
        install(choose("cuda", "linux", None, "2.13.0"), lambda command, environment: "ERROR: no route")


PIP_OUTPUT = """\
Collecting torch==2.13.0
  Downloading https://host/packages/torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (526.6 MB)
Progress 0 of 526600000
Progress 263300000 of 526600000
Collecting mpmath<1.4,>=1.1.0 (from sympy)
  Downloading mpmath-1.3.0-py3-none-any.whl (536 kB)
Installing collected packages: mpmath, sympy, torch
Successfully installed mpmath-1.3.0 sympy-1.14.0 torch-2.13.0
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_an_installation_into_a_log_names_its_large_steps() -> None:
    log = io.StringIO()
    show_progress(PIP_OUTPUT.splitlines(keepends=True), log)
    assert log.getvalue().splitlines() == [
        "  downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl, 526.6 MB",
        "  installing 3 packages",
    ]


def test_an_installation_on_a_terminal_shows_one_line_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    terminal = Terminal()
    show_progress(PIP_OUTPUT.splitlines(keepends=True), terminal)
    shown = [line.strip() for line in terminal.getvalue().split("\r\033[K")]
    assert "\n" not in terminal.getvalue() and shown[-1] == ""
    assert "downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl, 526.6 MB: 50 %" in shown
    assert "downloading mpmath-1.3.0-py3-none-any.whl, 536 kB" in shown and "installing 3 packages" in shown


def test_a_failed_installation_shows_what_pip_said(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "tools" / "run_pip.py", "install", "--no-index", "no-such-package"]
    done = subprocess.run(command, env=plain_environment(tmp_path), capture_output=True, text=True)
    assert done.returncode != 0 and "No matching distribution found for no-such-package" in done.stderr


def plain_environment(home: Path) -> dict[str, str]:
    """Nothing of this test run reaches the command: no make flags, no settings, no modules of the repository."""
    ours = ("PYTHON", "OSCINE_", "MAKE", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {"HOME": str(home), "HF_HUB_OFFLINE": "1"}


def test_make_install_refuses_an_old_python(tmp_path: Path) -> None:
    old = tmp_path / "python-old"
    script = "import sys; sys.version_info = (3, 8, 18); exec(sys.argv[1])"
    old.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{script}' \"$2\"\n")
    old.chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "tools").mkdir()
    for name in ("install_torch.py", "run_pip.py"):
        (tmp_path / "tools" / name).touch()

    command = ["make", "install", f"PYTHON={old}"]
    done = subprocess.run(command, cwd=tmp_path, env=plain_environment(tmp_path), capture_output=True, text=True)
    assert done.returncode != 0 and not (tmp_path / ".venv").exists()
    assert done.stderr.startswith("Oscine needs Python 3.11 or newer, and ") and " is 3.8." in done.stderr


def test_make_install_says_each_step_before_it_begins(tmp_path: Path) -> None:
    """The programs stand for Python and pip, and print what they are asked to do."""
    program = tmp_path / "python-new"
    program.write_text(
        "#!/bin/sh\n"
        'case "$*" in *version_info*) exit;; esac\n'
        'echo "runs: $*"\n'
        'test "$2" != venv || { mkdir -p .venv/bin && ln -s "$0" .venv/bin/python && ln -s "$0" .venv/bin/pip; }\n'
    )
    program.chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "tools").mkdir()
    for name in ("install_torch.py", "run_pip.py"):
        (tmp_path / "tools" / name).touch()

    command = ["make", "install", f"PYTHON={program}"]
    done = subprocess.run(command, cwd=tmp_path, env=plain_environment(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    steps = [line.partition(": ")[2] for line in printed if "Step " in line]
    assert steps == [
        "an environment with pip",
        "PyTorch",
        "Oscine and its requirements, about 75 MB to download",
    ]
    begins = [printed.index(next(line for line in printed if f"Step {n} of 3" in line)) for n in (1, 2, 3)]
    asked = ("-m venv", "install_torch.py", "install --editable")
    runs = [next(i for i, line in enumerate(printed) if line.startswith("runs:") and what in line) for what in asked]
    assert begins[0] < runs[0] < begins[1] < runs[1] < begins[2] < runs[2] and len(printed) < 10


@pytest.fixture(scope="module")
def wheel_environment() -> Iterator[Path]:
    """A fresh environment with the wheel of this tree, its requirements and the torch of .venv, and nothing else."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        # pip's own settings and cache. Only the modules that are used get compiled.
        environment = plain_environment(Path.home()) | {"PIP_NO_COMPILE": "1"}
        python = folder / "env" / "bin" / "python"

        def run(*command: str | Path) -> None:
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"

        run("make", "wheel", f"DIST={folder}/dist", "--assume-old=.venv/.installed")
        run(sys.executable, "-m", "venv", "--without-pip", folder / "env")
        share_torch(folder / "env")
        (wheel,) = (folder / "dist").glob("oscine-*.whl")
        run(sys.executable, "-m", "pip", "--python", python, "install", wheel)
        yield folder


def run_installed(folder: Path, program: str, *arguments: str) -> str:
    command = [folder / "env" / "bin" / program, *arguments]
    done = subprocess.run(command, cwd=folder, env=plain_environment(folder), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_speaks_in_an_empty_environment(wheel_environment: Path) -> None:
    run_installed(wheel_environment, "oscine", "say", "Hello there.", "-o", "x.wav")
    samples, rate = soundfile.read(wheel_environment / "x.wav")
    assert rate == 24000 and 0.3 < len(samples) / rate < 5
    assert np.sqrt(np.mean(samples**2)) > 0.01


@pytest.mark.slow
def test_the_wheel_prints_its_version_and_its_settings(wheel_environment: Path) -> None:
    assert oscine.__version__ in run_installed(wheel_environment, "oscine", "--version")
    assert "model" in run_installed(wheel_environment, "oscine", "serve", "--print-config")


IMPORT_ALL = """
import importlib, importlib.metadata, oscine
for file in importlib.metadata.files("oscine"):
    if file.suffix == ".py" and file.name != "__main__.py":
        try:
            importlib.import_module(".".join(file.with_suffix("").parts).removesuffix(".__init__"))
        except ModuleNotFoundError as error:
            print("missing", error.name.split(".")[0])
print(oscine.__file__)
for distribution in importlib.metadata.distributions():
    print("installed", distribution.name.lower())
"""


@pytest.mark.slow
def test_the_wheel_needs_no_package_of_the_developers(wheel_environment: Path) -> None:
    answer = run_installed(wheel_environment, "python", "-c", IMPORT_ALL)
    assert str(wheel_environment) in answer  # not the repository's
    assert not set(re.findall("^installed (.*)$", answer, re.MULTILINE)) & TEST_TOOLS
    optional = {"triton", "matplotlib", "jinja2", "faster_whisper", "jiwer", "whisper_normalizer", "sounddevice", "ray"}
    assert set(re.findall("^missing (.*)$", answer, re.MULTILINE)) <= optional


def test_the_pin_of_torch_is_one_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", pinned_version())
