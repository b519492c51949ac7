"""Certificates of the server and keys of the clients. Private keys are made where they stay, mode 0600."""

import ipaddress
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedpers.core.errors import ConfigError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,62})(\.[A-Za-z0-9][A-Za-z0-9-]{0,62})*")
LOCAL = ("localhost", "127.0.0.1")
CA_DAYS = 3650
Key = ec.EllipticCurvePrivateKey


def init(folder: Path, hosts: Sequence[str], days: int = 365) -> list[Path]:
    """Make a certificate authority and the server's certificate.

    Args:
        folder: takes ca.key, ca.crt, server.key and server.crt; made with mode 0700.
        hosts: DNS names and IP addresses under which devices reach the server.
        days: validity of the server's certificate; the authority's is ten years.

    Returns:
        The four files. Devices need ca.crt; the keys never leave the server.

    Raises:
        ConfigError: a host is no name or address, one of the files exists, or it would be valid for no day.
    """
    check_days(days)
    names = [_general_name(h) for h in dict.fromkeys([*hosts, *LOCAL])]
    files = [folder / n for n in ("ca.key", "ca.crt", "server.key", "server.crt")]
    _refuse_existing(files)
    ca_key, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    ca = _certify(_authority(ca_key), ca_key, CA_DAYS)
    server = _certify(_server(ca, key, hosts[0] if hosts else LOCAL[0], names), ca_key, days)
    _folder(folder)
    for path, content in zip(files, (_pem(ca_key), _crt(ca), _pem(key), _crt(server)), strict=True):
        _write(path, content, private=path.suffix == ".key")
    return files


def renew(folder: Path, hosts: Sequence[str], days: int = 365) -> Path:
    """A new certificate of the server, of a new key, under the same authority; devices need nothing new.

    Args:
        folder: holds what `init` made; server.key and server.crt are replaced, the old ones kept as .old.
        hosts: as for `init`; empty: those of the old certificate.
        days: validity.

    Raises:
        ConfigError: there is no authority there, or a host is no name or address.
    """
    check_days(days)
    try:
        ca_key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
        ca = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        old = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder}: no keys of `fedpers keys init` ({error})") from error
    known = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    names = [_general_name(h) for h in dict.fromkeys([*hosts, *LOCAL])] if hosts else list(known)
    first = hosts[0] if hosts else str(old.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
    key = ec.generate_private_key(ec.SECP384R1())
    made = _certify(_server(ca, key, first, names), ca_key, days)  # type: ignore[arg-type]
    for name, content in (("server.key", _pem(key)), ("server.crt", _crt(made))):
        path, new = folder / name, folder / f"{name}.new"
        new.unlink(missing_ok=True)
        _write(new, content, private=name.endswith(".key"))
        path.replace(folder / f"{name}.old")
        new.replace(path)
    return folder / "server.crt"


def check_days(days: int) -> None:
    """Raise ConfigError unless `days` is between 1 and the authority's validity.

    Raises:
        ConfigError: says which days are possible.
    """
    if not 1 <= days <= CA_DAYS:
        raise ConfigError(f"--days {days}: choose 1 to {CA_DAYS}, as long as the authority's certificate")


def client(folder: Path, name: str) -> tuple[Path, Path]:
    """Make the key pair of a client, in the format that a SuperNode reads (OpenSSH, NIST P-384).

    Returns:
        (private key, which stays on the device; public key, for the server).

    Raises:
        ConfigError: the name is unfit, or there is such a key.
    """
    check_name(name)
    private, public = folder / name, folder / f"{name}.pub"
    _refuse_existing([private, public])
    key = ec.generate_private_key(ec.SECP384R1())
    _folder(folder)
    _write(private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), private=True)
    line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _write(public, line + f" {name}\n".encode(), private=False)
    return private, public


def check_name(name: str) -> None:
    """Refuse a client's name that cannot be a file's name too.

    Raises:
        ConfigError: it has other characters than letters, digits, and `_ . -` after the first.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(f"client name '{name}': use up to 63 letters, digits, and _ . - after the first")


def read_public(path: Path) -> tuple[str, bytes]:
    """(client name, public key as one OpenSSH line without the name) of a .pub file.

    Raises:
        ConfigError: the file is missing, no EC public key, or names no client.
    """
    try:
        line = path.read_bytes()
        key = load_ssh_public_key(line)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{path}: no OpenSSH public key ({error}); make one: fedpers keys client NAME"
        ) from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError(
            f"{path}: SuperNodes need a key on a NIST curve; make one: fedpers keys client NAME"
        )
    words = line.decode().split()
    name = words[2] if len(words) > 2 else path.stem
    check_name(name)
    return name, key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not HOST.fullmatch(host):
            raise ConfigError(f"host '{host}' is neither a DNS name nor an IP address") from None
        return x509.DNSName(host)


def _authority(key: Key) -> x509.CertificateBuilder:
    name = _named("fedpers-ca")
    return (
        x509.CertificateBuilder(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _server(
    ca: x509.Certificate, key: Key, host: str, names: Sequence[x509.GeneralName]
) -> x509.CertificateBuilder:
    identifier = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    authority = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    return (
        x509.CertificateBuilder(ca.subject, _named(host), key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(authority, critical=False)
    )


def _certify(builder: x509.CertificateBuilder, ca_key: Key, days: int) -> x509.Certificate:
    now = datetime.now(UTC)
    return (
        builder.serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # devices' clocks may lag
        .not_valid_after(now + timedelta(days=days))
        .sign(ca_key, hashes.SHA384())
    )


def _usage(sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _pem(key: Key) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _crt(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _refuse_existing(files: Sequence[Path]) -> None:
    there = [str(f) for f in files if f.exists()]
    if there:
        raise ConfigError(f"{', '.join(there)} exist: keys are never overwritten; choose another --out")


def _folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _write(path: Path, content: bytes, private: bool) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o644)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
