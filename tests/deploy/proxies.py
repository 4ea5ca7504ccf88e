"""nginx and Caddy with the configuration in deploy/, on loopback, in front of servers that the test runs."""

import contextlib
import os
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.certificates import Certificate
from tests.conftest import ROOT, require_program
from tests.server.serving import eventually

NGINX = ROOT / "deploy" / "nginx" / "oscine.conf"
CADDY = ROOT / "deploy" / "caddy" / "Caddyfile"
# What Debian's nginx.conf has around the included file, in a folder of the test and as one process.
NGINX_MAIN = """
daemon off; master_process off; pid nginx.pid; error_log stderr notice;
events {{ }}
http {{
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
    include {file};
}}
"""


@dataclass(frozen=True)
class Proxy:
    url: str
    trust: ssl.SSLContext

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, verify=self.trust, timeout=600, trust_env=False)


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    """Each text must be there exactly once: the test runs the file as it is delivered but for these."""
    for old, new in pairs:
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
        text = text.replace(old, new)
    return text


def addresses(urls: Sequence[str]) -> list[str]:
    return [url.removeprefix("http://") for url in urls]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def nginx(servers: Sequence[str], certificate: Certificate, folder: Path) -> Iterator[Proxy]:
    program, port = require_program("nginx", "nginx"), free_port()
    upstream = "\n".join(f"server {address} max_fails=0;" for address in addresses(servers))
    text = replaced(
        NGINX.read_text(encoding="utf-8"),
        ("    server 127.0.0.1:8000 max_fails=0;", upstream),
        ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
        ("/etc/ssl/oscine/fullchain.pem", str(certificate.cert)),
        ("/etc/ssl/oscine/privkey.pem", str(certificate.key)),
    )
    (folder / "oscine.conf").write_text(text, encoding="utf-8")
    (folder / "nginx.conf").write_text(NGINX_MAIN.format(file=folder / "oscine.conf"), encoding="utf-8")
    command = [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]
    with running(command, folder, port, certificate) as proxy:
        yield proxy


@contextlib.contextmanager
def caddy(servers: Sequence[str], certificate: Certificate, folder: Path) -> Iterator[Proxy]:
    program, port = require_program("caddy", "caddy"), free_port()
    text = replaced(
        CADDY.read_text(encoding="utf-8"),
        ("speech.example.com {", f"https://:{port} {{\n bind 127.0.0.1\n tls {certificate.cert} {certificate.key}"),
        ("reverse_proxy 127.0.0.1:8000 {", f"reverse_proxy {' '.join(addresses(servers))} {{"),
    )
    (folder / "Caddyfile").write_text("{\n admin off\n auto_https off\n}\n" + text, encoding="utf-8")
    command = [program, "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]
    with running(command, folder, port, certificate) as proxy:
        yield proxy


@contextlib.contextmanager
def running(command: list[str], folder: Path, port: int, certificate: Certificate) -> Iterator[Proxy]:
    environment = {**os.environ, "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    proxy = Proxy(f"https://127.0.0.1:{port}", ssl.create_default_context(cafile=str(certificate.cert)))
    with open(folder / "log", "w+b") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            eventually(lambda: process.poll() is not None or answers(proxy))
            assert process.poll() is None, (folder / "log").read_text(encoding="utf-8")
            yield proxy
        finally:
            process.terminate()
            process.wait(600)


def answers(proxy: Proxy) -> bool:
    with proxy.client() as client, contextlib.suppress(httpx.TransportError):
        return client.get("/ready").status_code == 200
    return False


PROXIES: dict[str, Callable[[Sequence[str], Certificate, Path], contextlib.AbstractContextManager[Proxy]]] = {
    "nginx": nginx,
    "caddy": caddy,
}
