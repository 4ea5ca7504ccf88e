"""Coverage-guided fuzzing of what reads a client's bytes: python tools/fuzz.py TARGET... [--seconds 180] [--found DIR]

Needs atheris (`make fuzz` installs it apart). New inputs that reach new code are kept in the folder of `--found`; those
that fail a target are written there as crash-*. The corpus of the repository is only read.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORPUS = ROOT / "tests" / "fuzz" / "corpus"
_SLOW_S = 2  # of one input; some kilobytes take milliseconds
_MAX_BYTES = 4096
_MAX_MIB = 2048


def run(target: str, found: Path, seconds: int) -> None:
    import atheris

    sys.path.insert(0, str(ROOT))
    with atheris.instrument_imports(include=["oscine", "python_multipart", "starlette.formparsers", "json"]):
        from tests.fuzz.targets import TARGETS

    corpora = [str(folder) for folder in (found, CORPUS / target) if folder.is_dir()]
    limits = [
        f"-max_total_time={seconds}",
        f"-timeout={_SLOW_S}",
        f"-max_len={_MAX_BYTES}",
        f"-rss_limit_mb={_MAX_MIB}",
    ]
    artifacts = f"-artifact_prefix={found}/"
    atheris.Setup([sys.argv[0], *limits, artifacts, "-print_final_stats=1", *corpora], TARGETS[target])
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = sorted(folder.name for folder in CORPUS.iterdir())
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: all ({', '.join(names)})")
    parser.add_argument("--seconds", type=int, default=180, help="of each target")
    parser.add_argument("--found", type=Path, default=ROOT / ".cache" / "fuzz")
    given = parser.parse_args()
    targets = given.targets or names
    for target in targets:
        (found := given.found / target).mkdir(parents=True, exist_ok=True)
        if len(targets) == 1:
            run(target, found, given.seconds)
    if len(targets) > 1:  # the fuzzer ends its process
        options = ["--seconds", str(given.seconds), "--found", str(given.found)]
        failed = [one for one in targets if subprocess.call([sys.executable, __file__, one, *options])]
        sys.exit(f"inputs that fail: {', '.join(failed)}; see {given.found}/*/crash-*" if failed else 0)


if __name__ == "__main__":
    main()
