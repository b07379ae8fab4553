"""A private certificate authority, as a campus has one, and a certificate of it for this machine's names."""

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["Authority"]

LOOPBACK = ip_address("127.0.0.1")


class Authority:
    """Makes its own certificate and one for a server, in `folder`."""

    def __init__(self, folder: Path, names: tuple[str, ...] = ("localhost", "sso.example.org")) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.certificate, self.chain = folder / "ca.pem", folder / "server.pem"
        key, issuer = ec.generate_private_key(ec.SECP256R1()), _name("Campus CA")
        own = _builder(issuer, issuer, key.public_key())
        own = own.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.certificate.write_bytes(own.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        server = ec.generate_private_key(ec.SECP256R1())
        alternative = x509.SubjectAlternativeName([*(x509.DNSName(name) for name in names), x509.IPAddress(LOOPBACK)])
        signed = _builder(_name(names[0]), issuer, server.public_key()).add_extension(alternative, critical=False)
        self.chain.write_bytes(
            server.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + signed.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )

    def server_context(self) -> ssl.SSLContext:
        """What a server of this authority serves with."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.chain)
        return context


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
    )
