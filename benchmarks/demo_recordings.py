"""Records the built-in English texts with the demo voice on a device, one by one and many at once, with the same seeds.

    python -m benchmarks.demo_recordings --out eval/gpu [--devices cuda:0] [--at-once 1 64] [--texts FILE]

`oscine eval score` transcribes the folders eval/gpu/1 and eval/gpu/64 afterwards, on any machine, and `oscine eval
compare` says whether they differ, from each other or from recordings of a CPU (docs/eval.md).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.server_process import ServerProcess

_TAKES = 2  # of every text, as in docs/eval.md


def record(url: str, out: Path, name: str, at_once: int, texts: str) -> None:
    command = [sys.executable, "-c", "from oscine.commands.main import main; main()", "eval", "run", url]
    command += ["--out", str(out), "--name", name, "-c", str(at_once), "--repeat", str(_TAKES)]
    command += ["--texts", texts, "--no-dnsmos"]
    subprocess.run(command, check=True)


def record_all(devices: str, counts: Sequence[int], out: Path, texts: str = "english") -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess(None, Path(folder), "--slots", str(max(counts)), devices=devices)
        try:
            url = server.wait_ready()
            for at_once in counts:
                load = "one by one" if at_once == 1 else f"{at_once} at once"
                name = f"{'CPU' if devices == 'cpu' else 'GPU'}, {load}"
                record(url, out / str(at_once), name, at_once, texts)
            server.terminate()
        finally:
            server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="its folders of recordings must be new or empty")
    parser.add_argument("--devices", default="cuda:0")
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--texts", default="english", help="as of oscine eval run")
    options = parser.parse_args()
    record_all(options.devices, options.at_once, options.out, options.texts)


if __name__ == "__main__":
    main()
