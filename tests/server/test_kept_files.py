"""Files that a URL names for a short time: bounded in bytes and in time."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from oscine.config import ServerConfig
from oscine.errors import OverloadedError, RequestError
from oscine.process.resources import Owner, current_owner
from oscine.server.kept_files import KeptFile, KeptFiles
from oscine.speech.limits import ledger_of


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await test()

    asyncio.run(bounded())


def kept_files(config: ServerConfig) -> KeptFiles:
    return KeptFiles(ledger_of(config)["kept_file"], config.kept_files_s)


def add(files: KeptFiles, size: int, key: str, address: str = "") -> KeptFile | None:
    current_owner.set(Owner(key, address))
    return files.add(bytes(size), "audio/wav", "wav")


def kept(files: KeptFiles, size: int, key: str = "", address: str = "") -> KeptFile:
    file = add(files, size, key, address)
    assert file is not None
    return file


def test_a_file_is_found_by_its_name_alone() -> None:
    async def test() -> None:
        files = kept_files(ServerConfig())
        one, other = kept(files, 10), kept(files, 10)
        assert files.get(one.name) is one and one.name != other.name
        assert len(one.name) > 40 and one.name.endswith(".wav")
        with pytest.raises(RequestError, match="no such file"):
            files.get(one.name.removesuffix(".wav"))

    run(test)


def test_an_expired_file_is_deleted() -> None:
    async def test() -> None:
        files = kept_files(ServerConfig(kept_files_s=1))
        later: list[Callable[[], None]] = []
        loop = asyncio.get_running_loop()
        loop.call_later = lambda delay_s, call, *values: later.append(  # type: ignore[method-assign, assignment]
            lambda: call(*values) if delay_s == 1 else None
        )
        file = kept(files, 10)
        assert files.size == 10
        for call in later:
            call()
        with pytest.raises(RequestError):
            files.get(file.name)
        assert files.size == 0

    run(test)


def test_a_key_cannot_take_the_room_of_others() -> None:
    async def test() -> None:
        files = kept_files(ServerConfig(kept_files_bytes=100, kept_files_bytes_per_key=60))
        file = kept(files, 50, "a")
        kept(files, 50, "b")
        with pytest.raises(OverloadedError, match="kept files of all clients have"):
            add(files, 1, "c")
        assert add(files, 61, "d") is None  # it would not fit alone
        assert files.get(file.name) is file and files.size == 100

    run(test)


def test_the_oldest_files_of_a_key_make_room_for_its_next() -> None:
    async def test() -> None:
        files = kept_files(ServerConfig(kept_files_bytes=100, kept_files_bytes_per_key=60))
        others = kept(files, 40, "b")
        first, second = kept(files, 30, "a"), kept(files, 30, "a")
        third = kept(files, 20, "a")
        assert [files.get(file.name) for file in (others, second, third)] == [others, second, third]
        with pytest.raises(RequestError):
            files.get(first.name)

    run(test)


def test_an_address_makes_room_with_its_own_files() -> None:
    async def test() -> None:
        files = kept_files(ServerConfig(kept_files_bytes=100, kept_files_bytes_per_key=100))
        other, own, next_one = (kept(files, 40, "", address) for address in ("1.1.1.1", "2.2.2.2", "2.2.2.2"))
        assert [files.get(file.name) for file in (other, next_one)] == [other, next_one]
        with pytest.raises(RequestError):
            files.get(own.name)

    run(test)


def test_files_that_were_fetched_make_room_first() -> None:
    async def test() -> None:
        files = kept_files(ServerConfig(kept_files_bytes=100, kept_files_bytes_per_key=60))
        first, second, third = kept(files, 30, "a"), kept(files, 30, "a"), kept(files, 40, "b")
        second.fetched = third.fetched = True
        fourth = kept(files, 30, "a")  # the key's own files suffice
        assert [files.get(file.name) for file in (first, third, fourth)] == [first, third, fourth]
        with pytest.raises(RequestError):
            files.get(second.name)
        fifth = kept(files, 40, "c")
        assert files.get(fifth.name) is fifth and files.size == 100
        with pytest.raises(RequestError):
            files.get(third.name)

    run(test)
