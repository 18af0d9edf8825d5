"""TLS on the port of the plain protocol: settings, contexts that are reloaded with their files, and a TLS
session without I/O.

A server looks at the first byte of a connection: 0x16 begins a TLS handshake, a plain frame begins with 0x00 or 0x01.
Source: TlsSystemConfig, TlsHelper, NettyRemotingServer.HandshakeHandler. Keys, in the server's and the client's
configuration: `tls.server.mode`, `tls.enable`, `tls.test.mode.enable`, `tls.server.need.client.auth` and, under
`tls.server.` and `tls.client.`, `keyPath keyPassword certPath trustCertPath`, `authClient` / `authServer`.

As in RocketMQ a server's certificate is checked only when authServer is true, and host names never: routes name brokers
by IP address. Unlike RocketMQ, `tls.server.need.client.auth=require` refuses clients without a certificate of the trust
store, independent of authClient, and requires a trust store at the start. Files are PEM. Beyond RocketMQ, listeners
named by `tls.server.plainListeners` take plain connections although the mode is enforcing.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from aerobee.errors import ConfigError, WireError

FIRST_BYTE = 0x16  # content type "handshake" of a TLS record
READ_BYTES = 256 * 1024
NO_CERTIFICATE = (
    "TLS needs tls.server.certPath and tls.server.keyPath (PEM files); with tls.test.mode.enable=true and the package "
    "'cryptography' installed a self-signed certificate is made"
)
_LOG = logging.getLogger("aerobee.remoting")


def can_make_certificates() -> bool:
    """Whether the package that test mode needs is installed. It is loaded for test mode only: it is large."""
    return importlib.util.find_spec("cryptography") is not None


class TlsMode(StrEnum):
    """`tls.server.mode`: TLS refused, both accepted, plain refused."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(StrEnum):
    """`tls.server.need.client.auth`."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files of one side; "" where there is none. `verify_peer`: authClient or authServer."""

    key_path: str = ""
    key_password: str = ""
    cert_path: str = ""
    trust_cert_path: str = ""
    verify_peer: bool = False

    def __post_init__(self) -> None:
        if bool(self.key_path) != bool(self.cert_path):
            raise ConfigError(
                f"keyPath is {self.key_path!r} and certPath {self.cert_path!r}: set both, or neither"
            )

    def stamps(self) -> tuple[tuple[int, int, int], ...]:
        """Values that change when a file is replaced: modification time, size, inode. Raises ConfigError."""
        found = []
        for path in (self.key_path, self.cert_path, self.trust_cert_path):
            if path:
                try:
                    stat = os.stat(path)
                except OSError as error:
                    raise ConfigError(f"TLS file {path}: {error.strerror}") from error
                found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        return tuple(found)

    def load_into(self, context: ssl.SSLContext) -> None:
        """Raises ConfigError with the file's name."""
        try:
            if self.cert_path:
                # A password is always given, so that an encrypted key never asks at the terminal.
                context.load_cert_chain(self.cert_path, self.key_path, password=lambda: self.key_password)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise ConfigError(
                f"certPath {self.cert_path} and keyPath {self.key_path} cannot be loaded: {error}"
            ) from error
        try:
            if self.trust_cert_path:
                context.load_verify_locations(cafile=self.trust_cert_path)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"trustCertPath {self.trust_cert_path} cannot be loaded: {error}") from error


class ServerTls:
    """TLS mode of a server. The context is recreated when one of the files changed, without a restart."""

    def __init__(
        self,
        files: TlsFiles | None = None,
        *,
        mode: TlsMode = TlsMode.PERMISSIVE,
        client_auth: ClientAuth = ClientAuth.NONE,
        test_mode: bool = True,
        plain_listeners: frozenset[str] = frozenset(),
    ) -> None:
        """`plain_listeners`: names of those that take plain connections, too, where `mode` is enforcing."""
        self.mode = mode
        self.plain_listeners = plain_listeners
        self.files = files or TlsFiles()
        self._client_auth = client_auth
        self._test_mode = test_mode
        self._context: ssl.SSLContext | None = None
        self._stamps: tuple[tuple[int, int, int], ...] = ()
        if (
            client_auth is ClientAuth.REQUIRE
            and mode is not TlsMode.DISABLED
            and not self.files.trust_cert_path
        ):
            raise ConfigError(
                "tls.server.need.client.auth is require, but tls.server.trustCertPath does not say whose certificates "
                "are good: set it, or tls.server.need.client.auth=none"
            )
        if client_auth is ClientAuth.REQUIRE and mode is not TlsMode.ENFORCING:
            _LOG.warning(
                "tls.server.need.client.auth is require, but tls.server.mode %s serves plain connections, which bring "
                "no certificate: set tls.server.mode=enforcing",
                mode.value,
            )
        if self.files.cert_path and mode is not TlsMode.DISABLED:
            self.reload()
        elif mode is TlsMode.ENFORCING and not (test_mode and can_make_certificates()):
            raise ConfigError(f"tls.server.mode is enforcing: {NO_CERTIFICATE}")

    def reload(self) -> None:
        """Read the files again. New connections use them; open ones continue. Raises ConfigError and keeps the old context."""
        stamps = self.files.stamps()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["h2"])  # gRPC clients require it; clients of remoting request none
        self.files.load_into(context)
        # If certificates are requested and a trust store is configured, they are verified, with or without
        # authClient.
        if self._client_auth is not ClientAuth.NONE and self.files.trust_cert_path:
            required = self._client_auth is ClientAuth.REQUIRE
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        if not self.files.cert_path:
            importlib.import_module("aerobee.remoting.self_signed").load_self_signed(context)
        self._context, self._stamps = context, stamps

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection, from the files as they are now.

        Raises ConfigError when there is none; files that are broken now are logged and the old context is used.
        """
        if self._context is None:
            if not self.files.cert_path and not (self._test_mode and can_make_certificates()):
                raise ConfigError(NO_CERTIFICATE)
            self.reload()
        elif self.files.cert_path:
            try:
                if self.files.stamps() != self._stamps:
                    self.reload()
                    _LOG.info("TLS files were read again: %s", self.files.cert_path)
            except ConfigError as error:
                _LOG.error("TLS files changed and cannot be used, the old ones stay: %s", error)
        assert self._context is not None
        return self._context


class ClientTls:
    """TLS of a client: it presents its certificate if it has one, and verifies the server if verify_peer is set."""

    def __init__(self, files: TlsFiles | None = None, *, check_host: bool = False) -> None:
        """`check_host`: the certificate must also name the host to which the client connects; needs `verify_peer`."""
        self.files = files or TlsFiles()
        self.check_host = check_host
        self._stamps: tuple[tuple[int, int, int], ...] | None = None
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection, from the files as they are now. Raises ConfigError."""
        stamps = self.files.stamps()
        if self._context is None or stamps != self._stamps:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_REQUIRED if self.files.verify_peer else ssl.CERT_NONE
            context.check_hostname = self.check_host
            if self.files.verify_peer and not self.files.trust_cert_path:
                context.load_default_certs()
            self.files.load_into(context)
            self._context, self._stamps = context, stamps
        return self._context

    def pump(self, host: str) -> TlsPump:
        """The client's side of a new session with `host`. Raises ConfigError."""
        return TlsPump(self.context(), server_side=False, host=host if self.check_host else None)


def server_tls(properties: Mapping[str, str]) -> ServerTls:
    """Build from RocketMQ's keys. Raises ConfigError naming the key."""
    mode = properties.get("tls.server.mode") or TlsMode.PERMISSIVE.value
    auth = properties.get("tls.server.need.client.auth") or ClientAuth.NONE.value
    if mode not in list(TlsMode):
        raise ConfigError(f"tls.server.mode is {mode!r}, must be disabled, permissive or enforcing")
    if auth not in list(ClientAuth):
        raise ConfigError(f"tls.server.need.client.auth is {auth!r}, must be none, optional or require")
    return ServerTls(
        _files(properties, "tls.server.", "authClient"),
        mode=TlsMode(mode),
        client_auth=ClientAuth(auth),
        test_mode=_boolean(properties, "tls.test.mode.enable", True),
    )


def client_tls(properties: Mapping[str, str]) -> ClientTls | None:
    """Build from RocketMQ's keys; None unless `tls.enable` is true. In test mode the server is not checked."""
    if not _boolean(properties, "tls.enable", False):
        return None
    files = _files(properties, "tls.client.", "authServer")
    if files == TlsFiles() and not _boolean(properties, "tls.test.mode.enable", True):
        files = TlsFiles(verify_peer=True)
    return ClientTls(files)


class TlsPump:
    """One TLS session between two byte buffers. Bytes from the peer go in, plain bytes come out, and back."""

    def __init__(self, context: ssl.SSLContext, *, server_side: bool, host: str | None = None) -> None:
        """`host`: what the certificate of the server must name; None where the context does not check it."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._session = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=host
        )
        self.is_ready = False  # the handshake is done
        self.is_ended = False  # the peer has ended its stream

    def receive(self, data: bytes) -> bytes:
        """Decrypt bytes from the peer. Take outgoing() afterwards, in case of an error too.

        Raises WireError when the peer's bytes are not TLS, or either side refuses the handshake.
        """
        self._incoming.write(data)
        pieces: list[bytes] = []
        try:
            if not self.is_ready:
                self._session.do_handshake()
                self.is_ready = True
            while True:
                piece = self._session.read(READ_BYTES)
                if not piece:
                    self.is_ended = True
                    break
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass  # more bytes are needed
        except ssl.SSLZeroReturnError:
            self.is_ended = True
        except ssl.SSLCertVerificationError as error:
            raise WireError(f"TLS: {error.reason}: {error.verify_message}") from error
        except ssl.SSLError as error:
            raise WireError(f"TLS: {error.reason or error}") from error
        return b"".join(pieces)

    def send(self, data: bytes) -> None:
        """Encrypt; the handshake must be done."""
        view = memoryview(data)
        while len(view):
            view = view[self._session.write(view) :]

    def end(self) -> None:
        """Signal the end of the stream."""
        try:
            self._session.unwrap()
        except ssl.SSLError:
            pass  # the peer's own end is not waited for, and an unfinished handshake needs none

    def outgoing(self) -> bytes:
        """Return the bytes to send to the peer now."""
        return self._outgoing.read()


def _files(properties: Mapping[str, str], prefix: str, verify_key: str) -> TlsFiles:
    try:
        return TlsFiles(
            key_path=properties.get(prefix + "keyPath", ""),
            key_password=properties.get(prefix + "keyPassword", ""),
            cert_path=properties.get(prefix + "certPath", ""),
            trust_cert_path=properties.get(prefix + "trustCertPath", ""),
            verify_peer=_boolean(properties, prefix + verify_key, False),
        )
    except ConfigError as error:
        raise ConfigError(f"{prefix}*: {error}") from error


def _boolean(properties: Mapping[str, str], key: str, default: bool) -> bool:
    text = properties.get(key, "").strip().lower()
    if text not in ("", "true", "false"):
        raise ConfigError(f"{key} is {text!r}, must be true or false")
    return text == "true" if text else default


def choose_tls(first_byte: int, tls: ServerTls | None, listener: str) -> TlsPump | None:
    """Whether a connection that begins with this byte is TLS, at a listener of a server with these settings: its pump, or None for plain.

    Raises WireError if the settings forbid the connection, or the certificate is unusable.
    """
    if first_byte != FIRST_BYTE:
        if tls is not None and tls.mode is TlsMode.ENFORCING and listener not in tls.plain_listeners:
            raise WireError(f"a plain connection to listener {listener}, and tls.server.mode is enforcing")
        return None
    if tls is None or tls.mode is TlsMode.DISABLED:
        raise WireError("a TLS connection, and tls.server.mode is disabled")
    try:
        return TlsPump(tls.context(), server_side=True)
    except ConfigError as error:
        raise WireError(f"a TLS connection cannot be served: {error}") from error
