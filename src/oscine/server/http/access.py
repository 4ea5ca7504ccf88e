"""The names of the server that requests may use."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from functools import lru_cache

from oscine.speech.clips import matches_host, without_dot

SUBPROTOCOL = "oscine"
_LOOPBACK_NAMES = ("localhost", "*.localhost")
# Names that exist only in local networks, for services and machines.
_LOCAL_NAMES = ("*.local", "*.internal", "*.home.arpa")
_LABEL = re.compile(r"[a-z0-9_-]+")


class AllowedHosts:
    """The names of the server that requests may use. A page of another site can make its own name resolve to this
    machine (DNS rebinding); a browser then takes the server for that site, and lets the page read it.

    Addresses are always allowed, because only names can be rebound. A server with keys allows every name unless it
    is told some: the key protects it, and behind a proxy the name is the proxy's."""

    def __init__(self, bind_host: str, allowed: Sequence[str], *, has_keys: bool) -> None:
        self._any = "*" in allowed or (has_keys and not allowed)
        self._patterns = [*_LOOPBACK_NAMES, bind_host, *allowed]
        self._local = not _is_loopback(bind_host)
        if self._local:
            self._patterns += _LOCAL_NAMES
        self._allows = lru_cache(maxsize=64)(self._matches)  # clients use few names

    def __contains__(self, host: str | None) -> bool:
        """`host` is the Host header. Clients that send none are programs, which cannot be rebound."""
        return self._any or not host or self._allows(host)

    def _matches(self, host: str) -> bool:
        name = host_name(host)
        port = host.rpartition(":")[2] if host.count(":") == 1 else None
        ports = (port,) if port else ("80", "443")
        shown = (name, *(f"{name}:{port}" for port in ports))
        if any(matches_host(one, self._patterns) for one in shown) or _is_address(name):
            return True
        return self._local and _LABEL.fullmatch(name) is not None  # a machine or a container of this network


def host_name(host: str) -> str:
    """The name or address in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return without_dot(host.rpartition(":")[0] if host.count(":") == 1 else host)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_loopback(bind_host: str) -> bool:
    return bind_host == "localhost" or (_is_address(bind_host) and ipaddress.ip_address(bind_host).is_loopback)
