"""Client of the oracle: starts official.py in its own environment and exchanges numpy arrays with it.

The wire format, which official.py imports, is JSON lines with the arrays in .npz files.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

SERVER = Path(__file__).with_name("official.py")
STDERR_TAIL_BYTES = 4000


class OracleError(RuntimeError):
    """The official package failed; the message holds its error and the end of its stderr."""


def pack(value: Any, npz_path: Path) -> str:
    """One JSON line for `value`; its arrays go to `npz_path`."""
    arrays: dict[str, np.ndarray] = {}

    def plain(part: Any) -> Any:
        if isinstance(part, np.ndarray):
            key = f"a{len(arrays)}"
            arrays[key] = part
            return {"$array": key, "$file": npz_path.name}
        if isinstance(part, np.generic):
            return part.item()
        if isinstance(part, Path):
            return str(part)
        if isinstance(part, dict):
            return {name: plain(inner) for name, inner in part.items()}
        if isinstance(part, list | tuple):
            return [plain(inner) for inner in part]
        return part

    line = json.dumps(plain(value))
    if arrays:
        np.savez(npz_path, allow_pickle=False, **arrays)
    return line


def unpack(line: str, folder: Path) -> Any:
    """The value of a line; its array file is read once and removed."""
    opened: dict[str, Any] = {}

    def restore(part: Any) -> Any:
        if isinstance(part, dict):
            if "$array" in part:
                name = part["$file"]
                if name not in opened:
                    with np.load(folder / name, allow_pickle=False) as arrays:
                        opened[name] = dict(arrays)
                return opened[name][part["$array"]]
            return {name: restore(inner) for name, inner in part.items()}
        if isinstance(part, list):
            return [restore(inner) for inner in part]
        return part

    value = restore(json.loads(line))
    for name in opened:
        (folder / name).unlink()
    return value


class Official:
    """The official package in a process, started by the first call and ended by close()."""

    def __init__(self, python: Path) -> None:
        self._python = python
        self._process: subprocess.Popen[str] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._stderr: IO[bytes] | None = None
        self._calls = 0

    def call(self, name: str, **kwargs: Any) -> dict[str, Any]:
        process, folder = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        self._calls += 1
        request = pack({"call": name, "arguments": kwargs}, folder / f"request-{self._calls}.npz")
        try:
            process.stdin.write(request + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise OracleError(f"the official package ended during '{name}'\n{self._stderr_tail()}")
        result: dict[str, Any] = unpack(answer, folder)
        if "error" in result:
            raise OracleError(f"{name}: {result['error']}\n{self._stderr_tail()}")
        return result

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.close()  # the server's loop ends with its input
            try:
                self._process.wait(timeout=600)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process.stdout.close()
            self._process = None
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> "Official":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _started(self) -> tuple[subprocess.Popen[str], Path]:
        if self._process is None or self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="oracle-")
            # A file, not a pipe: nothing reads it during a call, and a full pipe would block the server.
            self._stderr = open(Path(self._folder.name) / "stderr", "w+b")  # noqa: SIM115 - close() closes it
            self._process = subprocess.Popen(
                [self._python, SERVER, self._folder.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                text=True,
                encoding="utf-8",
                env=os.environ
                | {
                    "HF_HUB_OFFLINE": "1",
                    "OMP_NUM_THREADS": "1",  # a second thread waits for the first one, busily
                    "TOKENIZERS_PARALLELISM": "false",
                    "CUDA_VISIBLE_DEVICES": "",
                },
            )
        return self._process, Path(self._folder.name)

    def _stderr_tail(self) -> str:
        assert self._stderr is not None
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - STDERR_TAIL_BYTES))
        tail = self._stderr.read().decode("utf-8", errors="replace")
        self._stderr.seek(0, os.SEEK_END)
        return tail
