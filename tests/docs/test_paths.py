"""Files, tests and settings that the documentation names exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs").glob("*/*.md"))]
_PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|md|sh|json|toml|yml|yaml|conf|service|html|ipynb))`")
_LINK = re.compile(r"\]\(([^)#]+?)(?:#[^)]*)?\)")


def exists(path: str) -> bool:
    """Paths of source files are written from the root, or from a package below it."""
    return any((ROOT / folder / path).exists() for folder in ("", "src/oscine", "src/oscine/server", "docs"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    missing = [path for path in _PATH.findall(page.read_text(encoding="utf-8")) if not exists(path)]
    assert not missing, f"{page.name} names {missing}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    targets = [target for target in _LINK.findall(page.read_text(encoding="utf-8")) if "://" not in target]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing, f"{page.name} links to {missing}"
