"""A certificate for TLS in test mode (`tls.test.mode.enable`), made in memory. Needs the package cryptography."""

from __future__ import annotations

import datetime
import ssl
import tempfile
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def load_self_signed(context: ssl.SSLContext) -> None:
    """Make a key and a certificate for test mode, valid for a year; they exist in this process only."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "aerobee test mode")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    key_bytes = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    # The ssl module reads certificates from files only; the directory is private and deleted immediately.
    with tempfile.TemporaryDirectory(prefix="aerobee-tls-") as directory:
        path = Path(directory, "server.pem")
        path.write_bytes(key_bytes + certificate.public_bytes(pem))
        context.load_cert_chain(path)
