"""Certificates and keys: who can read them, what they hold, and that TLS accepts them."""

import contextlib
import socket
import ssl
import stat
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedpers.app.cli import main
from fedpers.core.errors import ConfigError, FedpersError
from fedpers.deploy import keys, tls
from fedpers.deploy.members import Members


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


@pytest.mark.parametrize("days", ["0", "-1", "3651"])
def test_a_certificate_that_would_be_valid_on_no_day_is_refused(
    tmp_path: Path, days: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "init", "--days", days, "--out", str(tmp_path / "keys")]) == 2
    assert f"--days {days}: choose 1 to 3650" in capsys.readouterr().err
    assert not (tmp_path / "keys").exists()


def test_a_renewed_certificate_is_accepted_by_devices_with_the_old_ca(tmp_path: Path) -> None:
    keys.init(tmp_path, ["localhost", "10.77.0.1"])
    before = (tmp_path / "server.crt").read_bytes(), (tmp_path / "ca.crt").read_bytes()
    keys.renew(tmp_path, [])
    old, new = (
        x509.load_pem_x509_certificate(c) for c in (before[0], (tmp_path / "server.crt").read_bytes())
    )
    assert old.serial_number != new.serial_number and (tmp_path / "ca.crt").read_bytes() == before[1]
    names = [c.extensions.get_extension_for_class(x509.SubjectAlternativeName).value for c in (old, new)]
    assert names[0] == names[1] and mode(tmp_path / "server.key") == 0o600
    handshake(tmp_path, tmp_path / "ca.crt", "localhost")


class Superlink:
    """A Control API that knows some keys."""

    def __init__(self, home: Path, known: tuple[str, ...] = ()) -> None:
        self.home, self.known, self.calls = home, known, []  # type: ignore[var-annotated]
        home.mkdir(exist_ok=True)

    def flwr(self, *arguments: str) -> dict[str, object]:
        self.calls.append(arguments)
        if arguments[1] == "list":
            node = {"node-id": "11", "status": "online", "online-at": "now"}
            return {"nodes": [node, node | {"node-id": "99"}]}
        if arguments[1] == "register" and arguments[-1] in self.known:
            raise FedpersError("SuperLink: Public key already in use")
        if arguments[-1] == "site-x":
            raise FedpersError("SuperLink: something else")
        return {"node-id": 11}


def test_keys_that_are_known_keep_no_other_key_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("site-a", "site-b", "site-x"):
        keys.client(tmp_path, name)
    members = Members(Superlink(tmp_path / "home", ("site-a",)), tmp_path)
    found = [members.admit(name, tmp_path / f"{name}.pub") for name in ("site-a", "site-x", "site-b")]
    assert found == [None, "site-x is not admitted: SuperLink: something else", None]
    assert capsys.readouterr().out == "site-a was admitted before\nsite-b is admitted\n"


def test_names_stand_beside_flowers_ids_and_a_name_is_revoked(tmp_path: Path) -> None:
    keys.client(tmp_path, "site-b")
    link = Superlink(tmp_path / "home")
    members = Members(link, tmp_path)
    members.admit("site-b", tmp_path / "site-b.pub")
    assert [line.split()[:3] for line in members.lines()[1:]] == [
        ["?", "99", "online"],
        ["site-b", "11", "online"],
    ]
    members.revoke("site-b")
    assert link.calls[-1] == ("supernode", "unregister", "11", "fedpers") and members.ids == {}
    with pytest.raises(ConfigError, match="site-b: not admitted; admitted are none"):
        members.revoke("site-b")


def served(folder: Path) -> tuple[socket.socket, threading.Thread]:
    """A TLS server on loopback that takes one connection with the certificate in `folder`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            context.wrap_socket(connection, server_side=True).close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return listener, thread


@pytest.mark.parametrize("fault", ["none", "expired", "host", "authority"])
def test_what_is_wrong_with_a_certificate_is_said(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    if fault == "host":
        monkeypatch.setattr(keys, "LOCAL", ("fl.example.org",))
    keys.init(ours, [])
    keys.init(theirs, [])
    if fault == "expired":
        monkeypatch.setattr(keys, "check_days", lambda days: None)
        keys.renew(ours, [], days=0)
        certificate = x509.load_pem_x509_certificate((ours / "server.crt").read_bytes())
        assert certificate.not_valid_after_utc <= datetime.now(UTC)
    listener, thread = served(ours)
    with listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        found = tls.problem(address, (theirs if fault == "authority" else ours) / "ca.crt")
        thread.join(10)
    wanted = {
        "expired": "keys renew",
        "host": "keys renew --host 127.0.0.1",
        "authority": "another authority",
    }
    assert found is None if fault == "none" else wanted[fault] in str(found)


def test_a_server_that_is_not_there_is_told_apart(tmp_path: Path) -> None:
    keys.init(tmp_path, [])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert "cannot be reached" in str(tls.problem(f"127.0.0.1:{port}", tmp_path / "ca.crt"))
