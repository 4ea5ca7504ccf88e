"""Install the torch build that fits this machine into the environment that runs this script.

    python tools/install_torch.py [CHOICE]

CHOICE overrides the rule of `choose`: `cpu`, `cuda` (the public wheel), a backend of `uv pip install --torch-backend`
(`auto`, `cu126`, ...) or a requirement (`torch==2.11.0`). The version is the one in constraints.txt.
Only the standard library is used: nothing else is installed yet.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from run_pip import run_with_progress

CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"
UV_BACKEND = re.compile(r"auto|cu\d+|rocm[\d.]+|xpu")

# Runs a command and returns None, or the last line of its errors when it failed.
Runner = Callable[[Sequence[str], Mapping[str, str]], str | None]


@dataclass(frozen=True, slots=True)
class Source:
    """One way to get torch: a requirement for pip, or for uv with one of PyTorch's own indexes."""

    requirement: str
    name: str
    backend: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Sources in the order in which they are tried, and the reason that is shown to the user."""

    reason: str
    sources: tuple[Source, ...]


def pinned_version(constraints: Path = CONSTRAINTS) -> str:
    (version,) = re.findall(r"^torch==(\S+)$", constraints.read_text(), re.MULTILINE)
    return str(version)


def find_card() -> str | None:
    """The name of the NVIDIA card, or None."""
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        answer = subprocess.run(command, capture_output=True, text=True)
        if answer.returncode == 0 and answer.stdout.strip():
            return answer.stdout.splitlines()[0].strip()
    # Containers without nvidia-smi. /proc shows the driver of the host even where no card is passed in.
    if Path("/proc/driver/nvidia/version").exists() and any(Path("/dev").glob("nvidia[0-9]*")):
        return "NVIDIA card"
    return None


def choose(wish: str, platform: str, card: str | None, version: str) -> Choice:
    """Pick the sources of torch. `wish` is the user's choice or empty, `platform` is sys.platform."""
    # `===` refuses a +cpu build, which `==` would accept.
    if platform == "linux":
        public = Source(f"torch==={version}", "the public wheel with CUDA, about 2.7 GB to download")
    else:
        public = Source(f"torch=={version}", "the public wheel")
    cpu = (
        Source(f"torch=={version}+cpu", "the CPU build from your package index, about 200 MB"),
        Source(f"torch=={version}", "the CPU build from PyTorch's index, about 200 MB", backend="cpu"),
    )
    asked = f"TORCH={wish} asks for it"
    if wish == "cpu":
        return Choice(asked, cpu if platform == "linux" else (public,))
    if wish == "cuda":
        return Choice(asked, (public,))
    if UV_BACKEND.fullmatch(wish):
        return Choice(asked, (Source(f"torch=={version}", f"the {wish} build from PyTorch's index", backend=wish),))
    if wish:
        if not re.match(r"torch\b", wish):
            raise SystemExit(f"TORCH={wish} is not known: use cpu, cuda, auto, a backend like cu126, or torch==2.11.0")
        return Choice(asked, (Source(wish, wish),))
    if platform != "linux":
        return Choice(f"it is the build for {platform}", (public,))
    if card:
        return Choice(f"this machine has an {card}", (public,))
    return Choice("no NVIDIA card was found; `make install TORCH=cuda` overrides", (*cpu, public))


def uv_environment() -> dict[str, str]:
    """This process's environment, with the index and the certificates that pip is configured with."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True)
    settings = dict(re.findall(r"^\S+\.([\w-]+)='(.*)'$", listed.stdout, re.MULTILINE))
    known = {"UV_DEFAULT_INDEX": settings.get("index-url"), "SSL_CERT_FILE": settings.get("cert")}
    return {name: value for name, value in known.items() if value} | dict(os.environ)


def run_and_explain(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    status, errors = run_with_progress(command, environment)
    if status == 0:
        return None
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    # pip's last error is the reason; uv writes the cause below its error.
    first = max((i for i, line in enumerate(lines) if line.lower().startswith("error")), default=0)
    return " ".join(lines[first : first + 2]) or "no message"


def install(choice: Choice, run: Runner = run_and_explain) -> Source:
    """Install from the first source that works."""
    errors: list[str] = []
    for source in choice.sources:
        reason = f"because {choice.reason}" if not errors else f"since the source before failed ({errors[-1]})"
        print(f"Installing torch: {source.name}, {reason}", flush=True)
        if source.backend:
            error = _install_with_uv(source, run)
        else:
            error = run(_pip("install", source.requirement), os.environ)
        if error is None:
            return source
        errors.append(error)
    raise SystemExit("torch could not be installed:\n  " + "\n  ".join(errors))


def _pip(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]


def _install_with_uv(source: Source, run: Runner) -> str | None:
    """uv knows the addresses of PyTorch's indexes. It is fetched for this one use where it is not installed."""
    assert source.backend
    with tempfile.TemporaryDirectory() as folder:
        uv = shutil.which("uv")
        if uv is None:
            error = run(_pip("install", "--target", folder, "uv"), os.environ)
            if error:
                return error
            uv = str(Path(folder) / "bin" / "uv")
        command = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--torch-backend", source.backend]
        return run([*command, source.requirement], uv_environment())


def inspect_installed() -> tuple[str, bool]:
    """Version of the installed torch, and whether it reaches a card."""
    script = "import json, torch; print(json.dumps([torch.__version__, torch.cuda.is_available()]))"
    answer = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
    if answer.returncode:
        raise SystemExit(f"torch is installed but cannot be imported:\n{answer.stderr}")
    version, has_cuda = json.loads(answer.stdout)
    return version, has_cuda


def main() -> None:
    wish = sys.argv[1] if len(sys.argv) > 1 else ""
    card = find_card()
    install(choose(wish, sys.platform, card, pinned_version()))
    version, has_cuda = inspect_installed()
    print(f"torch {version} is installed")
    if card and wish != "cpu" and not has_cuda:
        print(
            f"warning: torch {version} does not reach the {card}; its driver may be too old for this build. "
            "`make install TORCH=auto` chooses a build for the driver."
        )


if __name__ == "__main__":
    main()
