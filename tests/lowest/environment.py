"""Makes an environment with the lowest versions that pyproject.toml allows:

    PYTHONPATH=tools .venv/bin/python tests/lowest/environment.py FOLDER

It shares the torch of .venv: other versions of torch have gigabytes.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import uv

from install_torch import uv_environment
from share_torch import share_torch

ROOT = Path(__file__).parents[2]
ENVIRONMENT = uv_environment() | {"UV_PYTHON_DOWNLOADS": "never"}
_OF_TORCH = re.compile(r"(torch|triton|nvidia-.*|cuda-.*)==")


def run(*arguments: str) -> str:
    command = [uv.find_uv_bin(), "pip", *arguments]
    return subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, check=True, stdout=subprocess.PIPE, text=True).stdout


def main(folder: Path) -> None:
    # Of our own requirements the lowest; of theirs the newest, as a user who installs today gets them.
    how = ("--resolution", "lowest-direct", "--only-binary", ":all:", "--constraint", "constraints.txt")
    listed = run("compile", "--quiet", "--no-header", "--no-annotate", *how, "pyproject.toml")
    requirements = [line for line in listed.splitlines() if not _OF_TORCH.match(line)]
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    run("install", "--quiet", "--no-deps", "--python", str(folder / "bin" / "python"), *requirements)
    share_torch(folder)
    (folder / "lowest-stamp").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
