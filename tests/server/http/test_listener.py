"""A port, host or certificate that cannot be used is refused with what to change, before anything is loaded."""

from pathlib import Path

import pytest

from oscine.errors import ConfigError
from oscine.server.http.listener import bind, check_tls_files
from tests.certificates import Certificate, encrypted_copy, self_signed


@pytest.mark.parametrize("host", ["192.0.2.1", "no..host", "no\0host"])
def test_an_error_about_the_host_does_not_name_the_port(host: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on .*: .*; choose an address of this machine with --host"):
        bind(host, 0)


def test_an_error_about_the_port_does_not_name_the_host() -> None:
    with bind("127.0.0.1", 0) as taken, pytest.raises(ConfigError, match="in use; choose another port with --port"):
        bind("127.0.0.1", taken.getsockname()[1])


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return self_signed(tmp_path_factory.mktemp("good"))


def refusal(cert: Path, key: Path | None) -> str:
    with pytest.raises(ConfigError) as refused:
        check_tls_files(str(cert), str(key) if key else None)
    return str(refused.value)


def test_without_a_certificate_nothing_is_checked() -> None:
    check_tls_files(None, None)


def test_a_certificate_and_its_key_are_accepted(good: Certificate) -> None:
    check_tls_files(str(good.cert), str(good.key))


def test_the_key_may_be_in_the_file_of_the_certificate(good: Certificate, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(good.cert.read_bytes() + good.key.read_bytes())
    check_tls_files(str(both), None)


def test_a_missing_file_is_named(good: Certificate, tmp_path: Path) -> None:
    missing = tmp_path / "none.pem"
    assert refusal(missing, good.key) == f"server.tls_cert: cannot read '{missing}': No such file or directory"
    assert refusal(good.cert, missing) == f"server.tls_key: cannot read '{missing}': No such file or directory"
    assert "server.tls_cert: cannot read" in refusal(tmp_path, good.key)  # a folder
    assert "null" in refusal(Path("a\0b"), good.key)


def test_files_that_are_no_certificates_are_named(good: Certificate, tmp_path: Path) -> None:
    (tmp_path / "text.pem").write_text("Hello.")
    assert "are not a certificate and its key as PEM" in refusal(tmp_path / "text.pem", good.key)
    assert "are not a certificate and its key as PEM" in refusal(good.cert, tmp_path / "text.pem")
    assert "name the key with --tls-key" in refusal(good.cert, None)


def test_a_key_of_another_certificate_is_refused(good: Certificate, tmp_path: Path) -> None:
    other = self_signed(tmp_path, "other")
    assert "does not belong to the certificate" in refusal(good.cert, other.key)


def test_an_encrypted_key_is_refused_instead_of_asking_for_its_password(good: Certificate) -> None:
    assert "needs a password; decrypt it with `openssl pkey" in refusal(good.cert, encrypted_copy(good.key))
