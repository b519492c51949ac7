"""Certificates and keys: who can read them, what they hold, and that TLS accepts them."""

import contextlib
import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedpers.app.cli import main
from fedpers.core.errors import ConfigError
from fedpers.deploy import keys


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_private_keys_are_the_owners_alone(tmp_path: Path) -> None:
    made = keys.init(tmp_path / "keys", ["superlink", "10.77.0.1"])
    private, public = keys.client(tmp_path / "keys", "site-a")
    assert [mode(p) for p in (*made, private, public)] == [0o600, 0o644, 0o600, 0o644, 0o600, 0o644]
    assert mode(tmp_path / "keys") == 0o700


def test_a_clients_key_is_what_a_supernode_reads_and_carries_its_name(tmp_path: Path) -> None:
    private, public = keys.client(tmp_path, "site-a")
    key = load_ssh_private_key(private.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name == "secp384r1"
    name, line = keys.read_public(public)
    assert name == "site-a" and line.startswith(b"ecdsa-sha2-nistp384 ")


def test_the_certificate_names_every_host(tmp_path: Path) -> None:
    keys.init(tmp_path, ["superlink", "10.77.0.1"])
    certificate = x509.load_pem_x509_certificate((tmp_path / "server.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["superlink", "localhost"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["10.77.0.1", "127.0.0.1"]


def handshake(server: Path, trusted: Path, host: str) -> None:
    """One TLS connection on loopback; raises what the client finds wrong."""
    serving, asking = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=str(trusted))
    serving.load_cert_chain(server / "server.crt", server / "server.key")
    asking.verify_flags |= ssl.VERIFY_X509_STRICT
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                serving.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with socket.create_connection(listener.getsockname()) as plain:
                asking.wrap_socket(plain, server_hostname=host).close()
        finally:
            thread.join()


def test_tls_accepts_the_server_and_refuses_another_host_or_authority(tmp_path: Path) -> None:
    keys.init(tmp_path / "a", ["superlink"])
    keys.init(tmp_path / "b", ["superlink"])
    handshake(tmp_path / "a", tmp_path / "a" / "ca.crt", "superlink")
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(tmp_path / "a", tmp_path / "a" / "ca.crt", "elsewhere")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path / "a", tmp_path / "b" / "ca.crt", "superlink")


def test_keys_are_never_overwritten(tmp_path: Path) -> None:
    keys.init(tmp_path, [])
    keys.client(tmp_path, "site-a")
    for again in (lambda: keys.init(tmp_path, []), lambda: keys.client(tmp_path, "site-a")):
        with pytest.raises(ConfigError, match="never overwritten"):
            again()


@pytest.mark.parametrize("name", ["", "../x", "a b", "a/b", ".hidden", "x" * 64])
def test_names_that_are_no_file_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="client name"):
        keys.client(tmp_path, name)


@pytest.mark.parametrize("content", [b"", b"ssh-ed25519 AAAA x", b"no key"])
def test_what_is_no_public_key_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.pub").write_bytes(content)
    with pytest.raises(ConfigError, match=r"x\.pub"):
        keys.read_public(tmp_path / "x.pub")


def test_the_command_makes_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "keys")
    assert main(["keys", "init", "--host", "superlink", "--out", out]) == 0
    assert main(["keys", "client", "site-a", "--out", out]) == 0
    assert sorted(p.name for p in Path(out).iterdir()) == [
        "ca.crt",
        "ca.key",
        "server.crt",
        "server.key",
        "site-a",
        "site-a.pub",
    ]
    assert "never leaves" in capsys.readouterr().out
    assert main(["keys", "init", "--host", "no host", "--out", out + "2"]) == 2
