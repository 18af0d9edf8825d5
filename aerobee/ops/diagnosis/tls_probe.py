"""Does a port speak TLS? For the advice after a request that nobody answered."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

from aerobee.errors import UsageError
from aerobee.host_port import split_address
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import encode_frame

PROBE_TIMEOUT_S = 3.0
UNKNOWN_CODE = 999_999  # every server answers it: not supported, or no permission


async def speaks_tls(address: str) -> bool:
    """Whether a TLS handshake succeeds there, whoever signed its certificate and whether or not it wants ours. Raises TimeoutError
    when nothing is said there at all."""
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
        return "CERTIFICATE" in str(error.reason)  # it wants ours, and so speaks TLS
    except TimeoutError:
        raise
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):  # the peer may be quicker; the answer is known
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            await writer.wait_closed()
    return True


async def _speaks_plain(address: str) -> bool:
    """Whether a request without TLS is answered there: a port that also takes TLS is not one that takes nothing else."""
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
    """What to change about TLS after a request to an open port failed; "" when it is not TLS."""
    try:
        there = await speaks_tls(address)
    except TimeoutError:
        return "it takes connections and answers nothing: it hangs or is overloaded; its log, or a restart, says more"
    if there and not with_tls:
        if await _speaks_plain(address):
            return ""
        return (
            "the port takes TLS connections only: give --tls (AEROBEE_TLS=true), with --tls-ca-file to check who "
            "answers, or keep both in a context (`aerobee context set`)"
        )
    if there:
        return (
            "it speaks TLS, but not with these settings: its certificate is none of --tls-ca-file's authorities, or it "
            "asks for a client certificate (--tls-cert-file, --tls-key-file) of an authority that it knows"
        )
    return "it does not speak TLS: leave out --tls, or set tls.server.mode there" if with_tls else ""
