"""`aerobee` in a container image: server roles, configured by environment variables and a mounted file.

    aerobee broker | nameserver | controller | proxy     a role, with defaults for containers
    aerobee …                                            any other command, unchanged

Sources of a key's value, later ones take precedence: the defaults below, /etc/aerobee/ROLE.conf (or the file that
AEROBEE_CONFIG names), AEROBEE_KEY variables, flags. Three variables exist only in containers:

    AEROBEE_ADVERTISED            host[:port] at which clients outside of the containers' network reach this broker; an IPv6
                                  address without brackets needs its port
    AEROBEE_ADVERTISED_FILE       a file with the same content; the start waits for it, because looking the address up may take time
    AEROBEE_ADVERTISED_INTERNAL   host name for clients and brokers inside the network (default: the container's host name)

A broker has two listeners, `internal` (10911) and `external` (10921), if one of the first two variables is set; a NameServer
always has two (9876, 9877). The NameServer advertises the brokers' external addresses to clients of its external listener, and
their internal addresses to clients of its internal one, so that clients on both sides work simultaneously. A broker serves gRPC at 8081.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from aerobee.broker.state.config import parse_endpoints
from aerobee.config import environment_settings, read_properties
from aerobee.errors import ConfigError
from aerobee.ha.controller.config import parse_peers
from aerobee.host_port import join_address
from aerobee.metrics_config import PROM
from aerobee.ops import cli
from aerobee.ops.settings import settings

BROKER, NAMESERVER, CONTROLLER, PROXY = "broker", "nameserver", "controller", "proxy"
KINDS = {
    BROKER: settings.BROKER_KINDS,
    NAMESERVER: (*settings.NAMESERVER_KINDS, *settings.controller_kinds()),
    CONTROLLER: settings.controller_kinds(),
    PROXY: settings.proxy_kinds(),
}
DATA = "/var/lib/aerobee"
CONFIG_DIRECTORY = "/etc/aerobee"
INTERNAL_PORT, EXTERNAL_PORT = 10_911, 10_921
GRPC_PORT = "8081"
NAMESERVER_LISTENERS = "internal://:9876,external://:9877"
BROKER_LISTENERS = f"internal://:{INTERNAL_PORT},external://:{EXTERNAL_PORT}"
FILE_WAIT_S = 300.0


def main() -> None:
    """Entry point of the image's `aerobee`."""
    role = sys.argv[1] if len(sys.argv) > 1 else ""
    if role in KINDS and not {"-h", "--help"} & set(sys.argv):
        try:
            sys.argv[2:2] = role_flags(role, os.environ, socket.gethostname())
        except ConfigError as error:
            sys.stderr.write(f"error: {error}\n")
            sys.exit(2)
    cli.main()


def role_flags(role: str, environ: Mapping[str, str], host_name: str) -> list[str]:
    """The flags of a role in a container: the mounted file, and defaults for keys that are not set.

    Reads the mounted file and AEROBEE_ADVERTISED_FILE. Raises ConfigError for an invalid value.
    """
    path = config_path(role, environ)
    written = set(read_properties(path)) if path else set()
    given = written | set(environment_settings(environ, KINDS[role]))
    defaults = role_defaults(role, environ, host_name, given)
    flags = ["-c", path] if path else []
    for key, value in defaults.items():
        if key not in given:
            flags += ["--set", f"{key}={value}"]
    return flags


def config_path(role: str, environ: Mapping[str, str]) -> str:
    """The mounted configuration file of a role, or an empty text."""
    named = environ.get("AEROBEE_CONFIG", "")
    if named:
        return named
    usual = f"{CONFIG_DIRECTORY}/{role}.conf"
    return usual if Path(usual).is_file() else ""


def role_defaults(role: str, environ: Mapping[str, str], host_name: str, given: set[str]) -> dict[str, str]:
    """Default settings of a container, for the keys that are not set. An empty host binds to IPv4 and IPv6."""
    data = environ.get("AEROBEE_DATA", DATA)
    numbers = {"metricsExporterType": PROM}
    peers = environ.get("AEROBEE_CONTROLLERDLEGERPEERS", environ.get("AEROBEE_CONTROLLER_D_LEGER_PEERS", ""))
    quorum = {"controllerStorePath": f"{data}/controller"}
    if own := own_peer(peers, host_name):
        quorum["controllerDLegerSelfId"] = own
    if role == CONTROLLER:
        return {"bindAddress": "", **numbers, **quorum}
    if role == PROXY:
        return {"bindAddress": "", "usersPath": f"{data}/proxy", **numbers}
    if role == NAMESERVER:
        files = {"kvConfigPath": f"{data}/kvConfig.json", "configStorePath": f"{data}/namesrv.properties"}
        return {"listeners": NAMESERVER_LISTENERS, **files, **numbers, **(quorum if peers else {})}
    inside = environ.get("AEROBEE_ADVERTISED_INTERNAL", "")
    defaults = {
        "storePathRootDir": f"{data}/store",
        "bindAddress": "",
        "grpcServerPort": GRPC_PORT,
        **numbers,
    }
    if inside:
        defaults["brokerIP1"] = inside
    outside = "" if "listeners" in given else advertised(environ)
    if outside:
        defaults["listeners"] = BROKER_LISTENERS
        own = join_address(inside or host_name, INTERNAL_PORT)
        defaults["advertisedListeners"] = f"internal://{own},external://{outside}"
    return defaults


def advertised(environ: Mapping[str, str], wait_s: float = FILE_WAIT_S) -> str:
    """host:port for clients outside, or an empty text. Waits for the file when one is named. Raises ConfigError."""
    text, source = environ.get("AEROBEE_ADVERTISED", ""), "AEROBEE_ADVERTISED"
    name = environ.get("AEROBEE_ADVERTISED_FILE", "")
    if name and not text:
        text, source = _read_when_there(Path(name), wait_s), name
    text = text.strip()
    if not text:
        return ""
    if (
        text.count(":") > 1 and "[" not in text
    ):  # an IPv6 address, which Kubernetes writes before a port without brackets
        host, _, port = text.rpartition(":")
        text = f"[{host}]:{port}"
    if not text.rpartition(":")[2].isdigit():
        text = f"{text}:{INTERNAL_PORT}"
    (endpoint,) = parse_endpoints(text, source) or (None,)
    if endpoint is None or not endpoint.host or not endpoint.port or "," in text:
        raise ConfigError(f"{source} is {text!r}: write a host, or host:port, that clients outside can reach")
    return text


def own_peer(peers: str, host_name: str) -> str:
    """The id of the controller at this host, compared by the first label of the host name; empty without one."""
    if not peers:
        return ""
    short = host_name.partition(".")[0]
    for name, address in parse_peers(peers).items():
        if address.rpartition(":")[0].partition(".")[0] == short:
            return name
    return ""


def _read_when_there(path: Path, wait_s: float) -> str:
    end = time.monotonic() + wait_s
    while True:
        try:
            text = path.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            text = ""
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"AEROBEE_ADVERTISED_FILE: {path} cannot be read: {error}") from error
        if text:
            return text
        if time.monotonic() > end:
            raise ConfigError(
                f"AEROBEE_ADVERTISED_FILE: {path} is still empty or missing after {wait_s:.0f} s"
            )
        time.sleep(0.2)
