"""Every command at a port where no process, or another one, listens: what is wrong where, and never the protocol's words."""

from __future__ import annotations

import dataclasses
import re
import shlex
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from aerobee.client import ConsumeFrom, ConsumerConfig, SyncAdmin, SyncProducer, SyncPushConsumer, reject
from aerobee.message import Message
from aerobee.ops.commands import ha
from aerobee.ops.commands.examples import EXAMPLES
from aerobee.ops.commands.tree import run_cli
from aerobee.ops.options import clients, shared_options
from aerobee.testing import ThreadedCluster
from tests.waiting import wait_for

NO_ANSWER_S = 0.3  # of the peer that never says anything
ANSWER_S = 60.0  # of all others, on a machine as busy as it may be
OFFLINE = {
    "mcp",
    "up",
    "nameserver",
    "broker",
    "controller",
    "proxy",
    "console",
    "store",
    "sim",
    "spark",
    "context",
}
OFFLINE_COMMANDS = {
    "cluster import",
    "filter test",
    "placement apply",
    "placement show",
    "placement revert",
}  # those of placement, and import, read their file first
ASKING = re.compile(r"delete|recall|commit|rollback|elect|forget|remove-controller|redrive")
# A request's name with its code, a code alone, or the name of a response code.
PROTOCOL = re.compile(r"[A-Z]{2,}_[A-Z_]{3,} \(\d+\)|\bcode \d+\b|\([A-Z]+_[A-Z_]+\)")
BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

ALERT = bytes.fromhex("15030300020246")  # TLS 1.2: fatal, protocol_version; what OpenSSL says to a plain peer


def http(peer: socket.socket) -> None:
    peer.recv(4096)
    peer.sendall(BAD_REQUEST)
    peer.close()


def ssh(peer: socket.socket) -> None:
    peer.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
    peer.recv(4096)
    peer.close()


def tls(peer: socket.socket) -> None:
    peer.recv(4096)
    peer.sendall(ALERT)
    peer.close()


def closing(peer: socket.socket) -> None:
    peer.recv(4096)
    peer.close()


class Listener:
    """A server of another kind on a free port; `behave` gets each connection, and is its owner."""

    def __init__(self, behave: Callable[[socket.socket], object]) -> None:
        self._behave = behave
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(peer,), daemon=True).start()

    def _one(self, peer: socket.socket) -> None:
        try:
            self._behave(peer)
        except OSError:
            peer.close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


@pytest.fixture(scope="module")
def addresses() -> Iterator[dict[str, str]]:
    held: list[socket.socket] = []
    listeners = {
        "http": Listener(http),
        "ssh": Listener(ssh),
        "tls": Listener(tls),
        "closing": Listener(closing),
        "silent": Listener(held.append),
    }
    with ThreadedCluster() as cluster:
        yield {
            "refused": "127.0.0.1:1",
            "broker": cluster.broker_addresses[0],
            **{kind: listener.address for kind, listener in listeners.items()},
        }
    for listener in listeners.values():
        listener.close()
    for peer in held:
        peer.close()


ASKING_FOR_A_SECRET = ("user create", "user update")


def command_lines() -> list[list[str]]:
    """One line of each command that talks to a cluster: its first example, answered with yes, or one that asks nothing."""
    lines = []
    for path, examples in EXAMPLES.items():
        if path.split()[0] in OFFLINE or path in OFFLINE_COMMANDS:
            continue
        example = examples[-1 if path in ASKING_FOR_A_SECRET else 0]
        words = shlex.split(example.split(" | ")[-1])[1:]
        if ASKING.search(path) and "--yes" not in words and "--dry-run" not in words:
            words.append("--yes")
        if path.split()[0] == "ha":  # its examples name where the controllers are
            words = [word for word in words if word != "-a" and ":9878" not in word]
        lines.append(words)
    return lines


# A handle and an id that are well made; those of the examples are not.
HANDLE = "djEgb3JkZXJzIGJyb2tlci1hIDE3OTUzNDgwMDAwMDAgN0YwMDAwMDEwQTNDMThCNEFBQzIwMDAwMDAwMDAwMDA="
WORDS = {
    "refused": "Connection refused",
    "broker": "use a NameServer's address, not a broker's",
    "http": "it begins with 'HTTP', not with a frame",
    "ssh": "it begins with 'SSH-', not with a frame",
    "tls": "it speaks TLS, and this connection does not",
    "closing": "closed the connection",
    "silent": "no answer within",
}


@pytest.mark.parametrize("kind", list(WORDS))
def test_every_command_says_what_is_wrong_there(
    kind: str,
    addresses: dict[str, str],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = shared_options.client_config
    answer_s = NO_ANSWER_S if kind == "silent" else ANSWER_S
    monkeypatch.setattr(
        clients, "client_config", lambda: dataclasses.replace(made(), request_timeout_s=answer_s)
    )
    monkeypatch.setattr(ha, "CALL_TIMEOUT_S", answer_s)
    monkeypatch.setenv("ALICE_SECRET", "a-secret-key")
    address = addresses[kind]
    lines = command_lines()
    assert len(lines) > 40
    if kind == "silent":  # each waits for its time: one of each family
        lines = [
            next(line for line in lines if line[0] == name) for name in sorted({line[0] for line in lines})
        ]
    for line in lines:
        asks_controllers = line[0] == "ha" and line[1] != "epochs"
        words = [HANDLE if word.startswith("djE") else word for word in line]
        code = run_cli([*words, "--controller" if asks_controllers else "--nameserver", address])
        out, err = capfd.readouterr()
        said = out + err
        where = f"aerobee {shlex.join(words)} at {kind}: {said}"
        if line[0] == "doctor" or (kind == "broker" and asks_controllers):
            assert code == 1, where
        else:
            assert code == 3, where
        assert not PROTOCOL.search(said), where
        assert address in said, where
        assert "Traceback" not in said, where
        if kind not in ("broker", "refused") or not (asks_controllers or line[0] == "doctor"):
            assert WORDS[kind] in said, where


def test_doctor_does_not_blame_tls_for_a_port_that_also_takes_it(
    addresses: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each server's port answers a TLS handshake, too."""
    assert run_cli(["doctor", "-n", addresses["broker"]]) == 1
    told = capsys.readouterr().out
    assert "TLS" not in told
    assert "it may be the port of a broker" in told


def test_doctor_warns_of_dead_letters(capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadedCluster() as cluster:
        address = cluster.nameserver_address
        assert run_cli(["doctor", "-n", address]) == 0
        assert "all passed" in capsys.readouterr().out
        cluster.create_topic("invoices")
        first = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
        with SyncProducer(address) as producer:
            producer.send(Message("invoices", b"unreadable"))
        with (
            SyncPushConsumer(address, "billing", ["invoices"], lambda _: reject("unreadable"), config=first),
            SyncAdmin(address) as admin,
        ):
            wait_for(
                "a dead letter",
                lambda: sum(each.count for each in admin.dead_letter_queues("billing")) or None,
            )
        assert run_cli(["doctor", "-n", address]) == 0
    told = capsys.readouterr().out
    assert "group billing  dead letters: 1 dead-letter message not redriven" in told
    assert "1 warning" in told


def test_doctor_does_not_blame_tls_for_a_peer_that_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """A port that takes connections and never answers: a process that hangs."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert run_cli(["doctor", "-n", address, "--tls"]) == 1
    told = capsys.readouterr().out
    assert "it hangs or is overloaded" in told
    assert "does not speak TLS" not in told


def test_without_a_broker_every_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadedCluster() as cluster:
        cluster.stop_broker()
        for line in ("topic create t", "group lag g", "group list"):
            assert run_cli([*line.split(), "-n", cluster.nameserver_address]) == 4
            told = capsys.readouterr().err
            assert "no broker is registered at the NameServer" in told
            assert "aerobee broker -n" in told


def test_a_filter_that_the_broker_does_not_understand_is_a_mistake_of_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ThreadedCluster(broker_config={"enable_property_filter": True}) as cluster:
        cluster.create_topic("prices")
        address = cluster.nameserver_address
        assert run_cli(["consume", "prices", "--no-follow", "--sql", "x >", "-n", address]) == 2
        told = capsys.readouterr().err
        assert "a value is expected" in told
        assert "aerobee filter test" in told
        assert run_cli(["message", "id", "xyz", "-n", address]) == 2
        assert "'xyz' is not a message id" in capsys.readouterr().err
