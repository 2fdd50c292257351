"""Certificates and keys for a deployment: an authority, the server's certificate, nodes' keys."""

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from nefl.engines.flower.server.registry import check_node_name
from nefl.errors import RunError

DAYS = 365
"""How long certificates are valid."""

LOOPBACK = ("localhost", "127.0.0.1")
"""Where a SuperLink's own programs reach it, whatever its name is elsewhere."""

SECRET, PUBLIC = 0o600, 0o666
"""Who may read a file, less what the user's mask takes away."""


@dataclass(frozen=True)
class ServerFiles:
    """What a SuperLink needs for TLS; nodes and operators need the first only."""

    authority: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path, hosts: Sequence[str]) -> ServerFiles:
    """Make an authority and a server certificate for these host names and addresses, and loopback.

    The authority's own key is not kept: nobody can sign another certificate with it.

    Raises:
        RunError: if some of the files are there already, also as links, or cannot be written.
    """
    files = ServerFiles(folder / "ca.crt", folder / "server.pem", folder / "server.key")
    for path in (files.authority, files.certificate, files.key):
        _check_free(path)
    folder.mkdir(parents=True, exist_ok=True)
    ca_key, key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    names = [_host(host) for host in dict.fromkeys([*hosts, *LOOPBACK])]
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nefl federation")])
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
    authority = (
        _certificate(ca_name, ca_name, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(ca_key, hashes.SHA384())
    )
    certificate = (
        _certificate(name, ca_name, key.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(ca_key, hashes.SHA384())
    )
    _write_new(files.authority, authority.public_bytes(serialization.Encoding.PEM), PUBLIC)
    _write_new(files.certificate, certificate.public_bytes(serialization.Encoding.PEM), PUBLIC)
    _write_new(
        files.key,
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        SECRET,
    )
    return files


def make_node_key(folder: Path, name: str) -> Path:
    """Make a node's private key, and beside it the public one, which the operator registers.

    Returns:
        The public key's file.

    Raises:
        ConfigError: if a node cannot have that name.
        RunError: if the key is there already, also as a link, or cannot be written.
    """
    path = folder / check_node_name(name)
    public = path.with_name(f"{path.name}.pub")
    _check_free(path)
    _check_free(public)
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    _write_new(
        path,
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        ),
        SECRET,
    )
    line = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    _write_new(public, line + b"\n", PUBLIC)
    return public


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks differ
        .not_valid_after(now + timedelta(days=DAYS))
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _check_free(path: Path) -> None:
    if os.path.lexists(path):  # a link to nothing is something, too
        raise RunError(f"{path}: exists; give another name or folder, or delete it first")


def _write_new(path: Path, content: bytes, mode: int) -> None:
    """Write a file that was not there: never through a link, which would put it elsewhere."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror})") from None
