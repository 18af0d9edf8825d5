"""Next steps that `aerobee up` prints for another terminal: required variables, and first commands.

Every line works as printed. The trust that a client needs is tested: a TLS session in memory between the servers'
settings and those of a client.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from aerobee.access.config import AccessConfig
from aerobee.errors import ConfigError, WireError
from aerobee.host_port import CONTROLLER_DEFAULT, NAMESERVER_DEFAULT, split_address
from aerobee.ops.servers.up_access import ACCESS_KEY, SECRET_KEY
from aerobee.ops.settings.settings import TlsSettings
from aerobee.remoting.tls import ClientAuth, ClientTls, ServerTls, TlsFiles, TlsMode, TlsPump


def exports(
    *,
    nameserver: str,
    controllers: Sequence[str],
    brokers: Sequence[str],
    tls: TlsSettings,
    access: AccessConfig,
    environ: Mapping[str, str],
) -> list[str]:
    """Shell lines after which commands reach the cluster. `controllers` and `brokers`: their addresses."""
    lines = []
    if nameserver != NAMESERVER_DEFAULT:
        lines.append(f"export AEROBEE_NAMESRV_ADDR={shlex.quote(nameserver)}")
    if controllers and controllers[0] != CONTROLLER_DEFAULT:
        lines.append(f"export AEROBEE_CONTROLLER_ADDR={shlex.quote(';'.join(controllers))}")
    if tls.mode is TlsMode.ENFORCING:
        lines += _tls_lines(tls, sorted({split_address(each)[0] for each in (nameserver, *brokers)}))
    if access.is_closed:
        lines += _key_lines(access, environ)
    return lines


def _tls_lines(tls: TlsSettings, hosts: Sequence[str]) -> Iterator[str]:
    """The variables of TLS: the system's authorities if they do, else one of the servers' files, else any certificate."""
    server = tls.server_tls([name.strip() for name in tls.plain_listeners.split(",") if name.strip()])
    files = [TlsFiles(verify_peer=True)]
    for path in (tls.trust_cert_path, tls.cert_path):
        if path:
            files.append(TlsFiles(verify_peer=True, trust_cert_path=path))
    for trusted in files:
        if all(_accepts(ClientTls(trusted, check_host=True), server, host) for host in hosts):
            path = trusted.trust_cert_path
            yield f"export AEROBEE_TLS_CA_FILE={shlex.quote(path)}" if path else "export AEROBEE_TLS=true"
            break
    else:
        yield "export AEROBEE_TLS_INSECURE=true  # no known authority signed the certificate for these addresses"
    if tls.need_client_auth is ClientAuth.REQUIRE:
        yield "read -r AEROBEE_TLS_CERT_FILE && export AEROBEE_TLS_CERT_FILE  # type the path of your certificate"
        yield "read -r AEROBEE_TLS_KEY_FILE && export AEROBEE_TLS_KEY_FILE  # type the path of its key"


def _key_lines(access: AccessConfig, environ: Mapping[str, str]) -> Iterator[str]:
    """The variables of access control. The secret is typed: a terminal keeps what is printed."""
    name, whose = environ.get(ACCESS_KEY, ""), "its secret key"
    if not name and access.first_user is not None:
        name, whose = access.first_user.access_key, "the password of initAuthenticationUser"
    if name:
        yield f"export {ACCESS_KEY}={shlex.quote(name)}"
    else:
        yield f"read -r {ACCESS_KEY} && export {ACCESS_KEY}  # type the name of a user"
    yield f"read -rs {SECRET_KEY} && export {SECRET_KEY}  # type {whose}"


def _accepts(client: ClientTls, server: ServerTls, host: str) -> bool:
    """Whether this client accepts the certificate of this server at this host."""
    try:
        near, far = client.pump(host), TlsPump(server.context(), server_side=True)
        near.receive(b"")
        while not near.is_ready:
            sent = near.outgoing()
            if not sent:
                return False
            far.receive(sent)
            near.receive(far.outgoing())
    except (ConfigError, WireError):
        return False
    return True
