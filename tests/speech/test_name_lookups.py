"""Names that hang keep only the threads of their host and of their client."""

import asyncio
import socket
import threading
from typing import Any

import pytest

from oscine.config import ServerConfig
from oscine.process.resources import Owner, current_owner
from oscine.speech.limits import ledger_of
from oscine.speech.name_lookups import MAX_OF_CLIENT, MAX_OF_HOST, NameLookups

WAIT_S = 600.0
FOUND = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 80))]


class Resolver:
    """Names that begin with "slow" hang until `go`."""

    def __init__(self) -> None:
        self.go, self.asked = threading.Event(), list[str]()

    def __call__(self, host: str, port: int, **_: Any) -> list[Any]:
        self.asked.append(host)
        if host.startswith("slow"):
            assert self.go.wait(WAIT_S)
        return FOUND * 2


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    resolver = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    return resolver


def test_names_that_hang_block_neither_other_hosts_nor_other_clients(resolver: Resolver) -> None:
    async def run() -> None:
        ledger = ledger_of(ServerConfig())
        lookups = NameLookups(ledger.pool("name_lookup"))
        current_owner.set(Owner(address="1"))
        one_host = [asyncio.ensure_future(lookups.addresses("slow.example", 80)) for _ in range(6)]
        await asyncio.sleep(0)
        assert await lookups.addresses("quick.example", 80) == ["192.0.2.1"]
        hosts = [asyncio.ensure_future(lookups.addresses(f"slow{number}.example", 80)) for number in range(6)]
        await asyncio.sleep(0)
        current_owner.set(Owner(address="2"))
        assert await lookups.addresses("quick.example", 80) == ["192.0.2.1"]
        assert len([name for name in resolver.asked if name.startswith("slow")]) <= MAX_OF_CLIENT
        assert resolver.asked.count("slow.example") <= MAX_OF_HOST
        for job in (*one_host[:1], *hosts):
            job.cancel()
        await asyncio.wait(hosts)
        assert len(ledger["name_lookup"]) == MAX_OF_CLIENT  # whose threads still work
        resolver.go.set()
        assert await asyncio.gather(*one_host[1:]) == [["192.0.2.1"]] * 5
        ledger.pool("name_lookup").executor.shutdown()
        assert len(ledger["name_lookup"]) == 0

    asyncio.run(run())
