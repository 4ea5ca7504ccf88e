"""Records the built-in English texts with the demo voice on a device, one by one and many at once, with the same seeds.

    python -m benchmarks.demo_recordings --out eval/gpu [--devices cuda:0] [--at-once 1 64] [--texts FILE]

`oscine eval score` transcribes the folders eval/gpu/1 and eval/gpu/64 afterwards, on any machine, and `oscine eval
compare` says whether they differ, from each other or from recordings of a CPU (docs/eval.md).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import read_arguments
from benchmarks.server_process import serving

_TAKES = 2  # of every text, as in docs/eval.md


def record(url: str, out: Path, name: str, at_once: int, texts: str) -> None:
    command = [sys.executable, "-c", "from oscine.commands.main import main; main()", "eval", "run", url]
    command += ["--out", str(out), "--name", name, "-c", str(at_once), "--repeat", str(_TAKES)]
    command += ["--texts", texts, "--no-dnsmos"]
    subprocess.run(command, check=True)


def record_all(
    devices: str, counts: Sequence[int], out: Path, texts: str = "english", model: Path | None = None, name: str = ""
) -> None:
    """`model` None: the demo voice. The recordings' `name` is followed by the load."""
    with serving(model, None, "--slots", str(max(counts)), devices=devices) as (server, url):
        for at_once in counts:
            load = "one by one" if at_once == 1 else f"{at_once} at once"
            what = name or ("CPU" if devices == "cpu" else "GPU")
            record(url, out / str(at_once), f"{what}, {load}", at_once, texts)
        server.terminate()


def main() -> None:
    options = read_arguments(
        __doc__, out={"type": Path, "required": True, "help": "its folders of recordings must be new or empty"},
        devices="cuda:0", at_once=[1, 64], texts=("english", "as of oscine eval run"),
        model=(Path, "a folder; default: the demo voice"), name=("", "of the recordings; default: CPU or GPU"),
    )  # fmt: skip
    record_all(options.devices, options.at_once, options.out, options.texts, options.model, options.name)


if __name__ == "__main__":
    main()
