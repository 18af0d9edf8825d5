"""The lines that `aerobee up` prints for another terminal work as printed: other ports, controllers, TLS, access control."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.certificates import identity
from tests.ports import free_block, free_port

SHELL = "/bin/bash"


@contextmanager
def printed_by_up(directory: Path, settings: dict[str, str], *arguments: str) -> Iterator[list[str]]:
    """`aerobee up` in a separate process, and its lines after "In another terminal:"."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AEROBEE_")}
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "aerobee.ops", "up", "--ephemeral", "--no-console"),
            *("--grpc-port", str(free_block(3))),
            *arguments,
        ],
        env={**environment, **settings},
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line.strip())
            if line.startswith("Ctrl-C"):
                break
        assert "In another terminal:" in lines, (lines, process.poll())
        yield lines[lines.index("In another terminal:") + 1 : -2]
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def run_printed(directory: Path, lines: list[str], typed: str = "") -> str:
    """Type the lines into a shell. `consume` follows until Ctrl-C, so it gets the number of messages to wait for."""
    script = "\n".join(f"{line} --count 1" if " consume " in line else line for line in lines)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AEROBEE_")}
    environment["AEROBEE_CLIENT_CONFIG"] = str(directory / "client.toml")
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(
        [SHELL, "-ec", script],
        input=typed,
        env=environment,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, (script, done.stdout, done.stderr)
    return done.stdout


def ports(count: int) -> tuple[str, ...]:
    """Options for free ports: a broker takes adjacent ports too."""
    port, nameserver, controller = (str(each) for each in (free_block(40) + 2, free_port(), free_block(3)))
    more = ("--controller-port", controller) if count > 1 else ()
    return ("--port", port, "--nameserver-port", nameserver, *more)


def test_on_other_ports_with_controllers(tmp_path: Path) -> None:
    with printed_by_up(tmp_path, {}, *ports(3), "--replicas", "2") as lines:
        out = run_printed(tmp_path, lines)
    assert "my first message" in out
    assert "broker-a" in out  # of `ha status`
    assert any(line.startswith("export AEROBEE_CONTROLLER_ADDR=") for line in lines)


@pytest.mark.parametrize("authority", ["signed", "self-signed", "test mode"])
def test_with_tls(tmp_path: Path, authority: str) -> None:
    signs = identity(tmp_path, "authority")
    server = identity(tmp_path, "server", signs if authority == "signed" else None)
    keys = {"tls.server.mode": "enforcing"}
    if authority != "test mode":
        keys |= {"tls.server.certPath": str(server.cert_path), "tls.server.keyPath": str(server.key_path)}
    if authority == "signed":
        keys["tls.server.trustCertPath"] = str(signs.cert_path)
    settings = [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]
    with printed_by_up(tmp_path, {}, *ports(1), *settings) as lines:
        assert "my first message" in run_printed(tmp_path, lines)
    trusted = {"signed": signs.cert_path, "self-signed": server.cert_path}.get(authority)
    wanted = f"export AEROBEE_TLS_CA_FILE={shlex.quote(str(trusted))}" if trusted else "AEROBEE_TLS_INSECURE"
    assert any(wanted in line for line in lines), lines


def test_with_access_control(tmp_path: Path) -> None:
    user = '{"username":"root","password":"root-secret-1"}'
    settings = {"AEROBEE_AUTHENTICATIONENABLED": "true", "AEROBEE_INITAUTHENTICATIONUSER": user}
    with printed_by_up(tmp_path, settings, *ports(1)) as lines:
        assert "my first message" in run_printed(tmp_path, lines, typed="root-secret-1\n")
    assert "root-secret-1" not in "\n".join(lines)
