"""The documentation site builds without a warning: no dead link, no dead anchor, no page outside the navigation."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from site_hooks import with_tabs
from tests.docs.live_server import ROOT

LOADED = re.compile(r'<(?:script|img|audio|source|iframe)\b[^>]*?\ssrc="([^"]*)"|<link\b[^>]*?\shref="([^"]*)"')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="pip install --group docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.slow
def test_what_a_page_loads_is_part_of_the_site(site: Path) -> None:
    """mkdocs does not check tags such as <audio>. Nothing comes from another server."""
    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]  # its paths begin with a slash
    assert site / "guides" / "live_text" / "index.html" in pages
    for page in pages:
        for source, style in LOADED.findall(page.read_text("utf-8")):
            path = re.split("[?#]", source or style)[0]
            assert (page.parent / path).exists(), f"{page.relative_to(site)} loads {source or style}"


@pytest.mark.slow
def test_stylesheets_load_nothing_from_other_servers(site: Path) -> None:
    for file in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", file.read_text("utf-8")), file.name


def test_the_site_and_the_playground_look_alike() -> None:
    ours, theirs = ROOT / "docs" / "assets", ROOT / "src" / "oscine" / "server" / "playground"
    assert (ours / "logo.svg").read_bytes() == (theirs / "icon.svg").read_bytes()
    style = (theirs / "style.css").read_text("utf-8")
    playground = {name: both for name, *both in re.findall(r"(--[\w-]+): light-dark\((#\w+), (#\w+)\)", style)}
    light, dark = (ours / "site.css").read_text("utf-8").split('[data-md-color-scheme="slate"]', 1)
    for name, colour in re.findall(r"^  (--(?!md-|code)[\w-]+): (#\w+)", light, re.MULTILINE):
        assert playground[name][0] == colour and f"  {name}: {playground[name][1]};" in dark, name


def test_consecutive_code_blocks_with_titles_become_tabs() -> None:
    blocks = '```sh title="curl"\nls\n```\n\n```js title="JavaScript"\n1;\n\n2;\n```\n'
    tabs = '=== "curl"\n\n    ```sh\n    ls\n    ```\n\n=== "JavaScript"\n\n    ```js\n    1;\n\n    2;\n    ```\n'
    assert with_tabs(f"Text.\n\n{blocks}\nMore.\n") == f"Text.\n\n{tabs}\nMore.\n"
    single = '```sh title="curl"\nls\n```\n\nText.\n\n```sh\nls\n```\n'
    assert with_tabs(single) == single
