"""mkdocs hooks: pages that GitHub shows as plain Markdown get the layout of the site.

Consecutive code blocks with titles become tabs. A picture NAME-light.png is NAME-dark.png in dark mode. The first page
has no side bars.
"""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.pages import Page

_BLOCK = r'^```\w+ title="[^"]+"\n.*?^```\n'
_TITLED = re.compile(r'^(```\w+) title="([^"]+)"(\n.*?^```\n)', re.MULTILINE | re.DOTALL)
_CONSECUTIVE = re.compile(rf"(?:{_BLOCK}\n?){{2,}}", re.MULTILINE | re.DOTALL)
_LIGHT = re.compile(r"!\[([^]]*)\]\((\S+)-light\.png\)")


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    if page.is_homepage:
        page.meta["hide"] = ["navigation", "toc"]
    return _LIGHT.sub(r"![\1](\2-light.png#only-light)![\1](\2-dark.png#only-dark)", with_tabs(markdown))


def with_tabs(markdown: str) -> str:
    return _CONSECUTIVE.sub(lambda blocks: _TITLED.sub(_tab, blocks[0]), markdown)


def _tab(block: re.Match[str]) -> str:
    fence, title, rest = block.groups()
    return f'=== "{title}"\n\n{textwrap.indent(fence + rest, "    ")}'
