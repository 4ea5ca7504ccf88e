"""A port or host that cannot be used is reported with what to change."""

import pytest

from oscine.errors import ConfigError
from oscine.server.http.listener import bind


@pytest.mark.parametrize("host", ["192.0.2.1", "no..host", "no\0host"])
def test_an_error_about_the_host_does_not_name_the_port(host: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on .*: .*; choose an address of this machine with --host"):
        bind(host, 0)


def test_an_error_about_the_port_does_not_name_the_host() -> None:
    with bind("127.0.0.1", 0) as taken, pytest.raises(ConfigError, match="in use; choose another port with --port"):
        bind("127.0.0.1", taken.getsockname()[1])
