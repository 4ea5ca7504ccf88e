"""Link the torch of the environment that runs this script into another environment: a copy would take a gigabyte.

python tools/share_torch.py FOLDER
"""

import sys
import sysconfig
from importlib import metadata
from pathlib import Path


def share_torch(folder: Path) -> None:
    """What torch requires is not linked: pip sees torch as installed, and installs that."""
    (site_packages,) = folder.glob("lib/python3*/site-packages")
    for name in {file.parts[0] for file in metadata.files("torch") or ()} - {".."}:
        link = site_packages / name
        link.unlink(missing_ok=True)
        link.symlink_to(Path(sysconfig.get_path("purelib")) / name)


if __name__ == "__main__":
    share_torch(Path(sys.argv[1]))
