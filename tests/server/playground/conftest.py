"""Fixtures of the playground tests: pages in Chromium on servers of their own."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytest

from tests.server.browsing import Visit, chromium, visit

Opener = Callable[..., Visit]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")  # Playwright's event loop counts as running: other modules could not use asyncio.run
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def shared(browser: Any) -> Iterator[Visit]:
    with visit(browser, permissions=["clipboard-read", "clipboard-write"]) as shared:
        yield shared


@pytest.fixture
def one(shared: Visit) -> Iterator[Visit]:
    """A page on a server with preset voices, loaded again for each test: that takes half the time of a new one."""
    engine = shared.engine
    engine.frame_s, engine.slots, engine.queue, engine.ready, engine.cancelled = 0.005, 8, 8, True, 0
    shared.clear_history()
    shared.page.evaluate("() => history.replaceState(null, '', location.pathname)")
    shared.page.reload()
    shared.wait_until_loaded()
    engine.requests.clear()
    yield shared
    shared.check()


@pytest.fixture
def opened(browser: Any) -> Iterator[Opener]:
    """opened(card=..., config=...): a page on its own server."""
    with ExitStack() as stack:

        def opener(**options: Any) -> Visit:
            entered: AbstractContextManager[Visit] = visit(browser, **options)
            one = stack.enter_context(entered)
            stack.callback(one.check)
            return one

        yield opener
