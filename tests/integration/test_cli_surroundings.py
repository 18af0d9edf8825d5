"""Commands in odd surroundings: closed streams, ASCII only, arguments that are no UTF-8, misspelt variables."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from aerobee.testing import ThreadedCluster

WITHIN_S = 60
COMMAND = f"{sys.executable} -m aerobee.ops.cli"
UNUSED_ADDRESS = "127.0.0.1:1"


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster() as started:
        yield started


def shell(line: str | bytes, **variables: str) -> subprocess.CompletedProcess[bytes]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AEROBEE_")}
    return subprocess.run(
        line, shell=True, capture_output=True, timeout=WITHIN_S, env={**environment, **variables}, check=False
    )


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_standard_streams_are_no_fault(cluster: ThreadedCluster, closed: str) -> None:
    done = shell(f"{COMMAND} topic list -n {cluster.nameserver_address} {closed}")
    assert done.returncode == 0, done.stderr


def test_a_reader_that_goes_away_is_no_fault(cluster: ThreadedCluster) -> None:
    line = f"{COMMAND} topic list -n {cluster.nameserver_address}"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{line} | true"], capture_output=True, timeout=WITHIN_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_output_in_ascii_has_no_error_of_pythons() -> None:
    done = shell(f"{COMMAND} doctor -n {UNUSED_ADDRESS}", PYTHONIOENCODING="ascii")
    assert done.returncode == 1
    assert rb"\u2717 nameserver" in done.stdout
    assert b"Traceback" not in done.stderr


def test_argument_that_is_no_utf_8_is_sent_as_it_is(cluster: ThreadedCluster) -> None:
    at = f"-n {cluster.nameserver_address}"
    assert shell(f"{COMMAND} send bytes ".encode() + b"\xff\xfe " + at.encode()).returncode == 0
    read = shell(f"{COMMAND} consume bytes --from first --count 1 --raw {at}")
    assert read.stdout == b"\xff\xfe"
    refused = shell(f"{COMMAND} send ".encode() + b"\xff x " + at.encode())
    assert refused.returncode == 2
    assert b"only letters, digits" in refused.stderr


def test_misspelt_variable_is_named() -> None:
    variables = {
        "AEROBEE_NAMESERV_ADDR": "x",
        "AEROBEE_FLUSH_DISK_TYPE": "SYNC_FLUSH",
        "AEROBEE_DATA": "/tmp",
    }
    done = shell(f"{COMMAND} topic list -n {UNUSED_ADDRESS}", **variables)
    assert done.returncode == 3
    notes = [line for line in done.stderr.decode().splitlines() if line.startswith("note: ")]
    assert notes == [
        "note: AEROBEE_NAMESERV_ADDR is not a variable of Aerobee and has no effect; did you mean AEROBEE_NAMESRV_ADDR?"
    ]


def test_debug_says_what_a_send_does_wherever_it_stands(cluster: ThreadedCluster) -> None:
    at = f"-n {cluster.nameserver_address}"
    for line in (f"--debug send debugged x {at}", f"send debugged x --debug {at}"):
        done = shell(f"{COMMAND} {line}")
        assert done.returncode == 0
        assert b"connected to" in done.stderr
        assert b"debugged: SendResult" in done.stderr


def test_variable_that_chooses_the_fast_path_is_known() -> None:
    done = shell(
        f"{COMMAND} topic list -n {UNUSED_ADDRESS}", AEROBEE_FAST_PATH="python", AEROBEE_CLIENT_CODEC="python"
    )
    assert b"note: " not in done.stderr
