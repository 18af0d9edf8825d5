"""Probe whether a port speaks TLS, for the advice after a request without a reply."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

from aerobee.errors import UsageError
from aerobee.host_port import split_address
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import encode_frame

PROBE_TIMEOUT_S = 3.0
UNKNOWN_CODE = 999_999  # every server replies to this request code: not supported, or no permission


async def speaks_tls(address: str) -> bool:
    """Whether the port speaks TLS, with any server certificate, and also if the server requires a client certificate. Raises
    TimeoutError when the peer sends nothing."""
    try:
        host, port = split_address(address)
    except UsageError:
        return False
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLError as error:
        return "CERTIFICATE" in str(
            error.reason
        )  # the server requires a client certificate, so it speaks TLS
    except TimeoutError:
        raise
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):  # the peer may close first; the result is known
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            await writer.wait_closed()
    return True


async def _speaks_plain(address: str) -> bool:
    """Whether the port replies to a request without TLS: a port that accepts TLS may also accept plain connections."""
    host, port = split_address(address)
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(encode_frame(RemotingCommand(UNKNOWN_CODE, {})))
            return bool(await reader.read(1))
    except (OSError, TimeoutError):
        return False
    finally:
        if writer is not None:
            writer.close()


async def tls_advice(address: str, *, with_tls: bool) -> str:
    """Advice about TLS after a request to an open port failed; "" when TLS is not the cause."""
    try:
        there = await speaks_tls(address)
    except TimeoutError:
        return "the server accepts connections but does not reply: it hangs or is overloaded; see its log, or restart it"
    if there and not with_tls:
        if await _speaks_plain(address):
            return ""
        return (
            "the port accepts TLS connections only: use --tls (AEROBEE_TLS=true), with --tls-ca-file where no authority of "
            "this system signed the certificate, or save both in a context (`aerobee context set`)"
        )
    if there:
        return (
            "the TLS handshake fails: name the authority that signed the server's certificate in --tls-ca-file, and the "
            "address in the certificate's subjectAltName (--tls-insecure accepts any certificate), or the server "
            "requires a client certificate (--tls-cert-file, --tls-key-file) of an authority that it trusts"
        )
    return "the port does not speak TLS: omit --tls, or set tls.server.mode at the server" if with_tls else ""
