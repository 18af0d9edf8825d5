"""`aerobee up`, `nameserver` and `broker` as processes: ready, drained, forced, refused."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_block, free_broker_port, free_port, free_ports

WITHIN_S = 120.0
Start = Callable[..., subprocess.Popen[str]]
AEROBEE = (sys.executable, "-m", "aerobee.ops")


@pytest.fixture
def start() -> Iterator[Start]:
    """Start `aerobee ARGUMENTS` as a separate process group; what is left at the end is killed."""
    processes: list[subprocess.Popen[str]] = []

    def command(*arguments: str, **options: Any) -> subprocess.Popen[str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("AEROBEE_")}
        process = subprocess.Popen(
            [*AEROBEE, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
            **options,
        )
        processes.append(process)
        return process

    yield command
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def document(process: subprocess.Popen[str]) -> Any:
    """The next JSON line of standard output."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], WITHIN_S)
    assert readable, "nothing was printed in time"
    line = process.stdout.readline()
    if not line:
        process.wait(WITHIN_S)
        assert process.stderr is not None
        pytest.fail(process.stderr.read())
    return json.loads(line)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*AEROBEE, *arguments], capture_output=True, text=True, timeout=WITHIN_S, check=False
    )


def up(start: Start, *arguments: str) -> tuple[subprocess.Popen[str], Any]:
    first, nameserver = free_block(30) + 2, free_port()  # `up` takes every tenth port for its brokers
    ports = ("--port", str(first), "--nameserver-port", str(nameserver), "--grpc-port", str(free_block(3)))
    process = start("up", "--json", *ports, *arguments)
    return process, document(process)


def test_up_is_healthy_when_it_says_so_and_ctrl_c_drains_it(start: Start, tmp_path: Path) -> None:
    process, ready = up(start, "--data", str(tmp_path))
    sent = run("send", "hello", "kept", "-n", ready["nameserver"], "--json")
    assert sent.returncode == 0, sent.stderr
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 0, error
    assert json.loads(out) == {"event": "stopped"}
    assert not (tmp_path / "broker-a" / "abort").exists()

    process, ready = up(start, "--data", str(tmp_path))
    read = run("consume", "hello", "--from", "first", "--count", "1", "-n", ready["nameserver"])
    assert read.stdout == "kept\n"


def test_further_broker_is_a_process_that_ends_with_up(start: Start) -> None:
    process, ready = up(start, "--ephemeral", "--brokers", "2")
    assert list(ready["brokers"]) == ["broker-a", "broker-b"]
    healthy = run("doctor", "-n", ready["nameserver"], "--json")
    assert healthy.returncode == 0, healthy.stdout
    process.kill()  # not even up itself has a chance to say anything
    process.wait(WITHIN_S)
    deadline = time.monotonic() + WITHIN_S
    while run("doctor", "-n", ready["brokers"]["broker-b"], "--json").stdout.find("Connection refused") < 0:
        assert time.monotonic() < deadline, "the further broker outlives up"


def test_killed_cluster_has_every_message_at_its_next_start(start: Start, tmp_path: Path) -> None:
    process, ready = up(start, "--data", str(tmp_path))
    assert run("send", "hello", "kept", "-n", ready["nameserver"]).returncode == 0
    process.kill()
    process.wait(WITHIN_S)
    process, ready = up(start, "--data", str(tmp_path))
    read = run("consume", "hello", "--from", "first", "--count", "1", "-n", ready["nameserver"])
    assert read.stdout == "kept\n"


def test_taken_port_and_locked_directory_are_refused(start: Start, tmp_path: Path) -> None:
    _, ready = up(start, "--data", str(tmp_path))
    port = ready["nameserver"].rpartition(":")[2]
    refused = run("nameserver", "--port", port)
    assert refused.returncode == 6
    assert "another process uses the port" in refused.stderr
    assert "Traceback" not in refused.stderr

    free = free_broker_port()
    refused = run(
        "broker", "--data", str(tmp_path / "broker-a"), "--port", str(free), "-n", ready["nameserver"]
    )
    assert refused.returncode == 6
    assert "is open in another broker" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_nameserver_and_broker_run_by_themselves(start: Start, tmp_path: Path) -> None:
    nameserver_port, broker_port = free_port(), free_broker_port()
    nameserver = start("nameserver", "--port", str(nameserver_port), "--host", "127.0.0.1", "--json")
    address = document(nameserver)["address"]
    broker = start(
        *(
            "broker",
            "-n",
            address,
            "--port",
            str(broker_port),
            "--host",
            "127.0.0.1",
            "--name",
            "solo",
            "--json",
        ),
        *("--data", str(tmp_path / "store"), "--set", "brokerIP1=127.0.0.1", "--profile", "production"),
    )
    assert document(broker)["part"] == "broker"
    missing = run("send", "misspelt", "x", "-n", address)
    assert missing.returncode == 4, missing.stderr
    assert run("topic", "create", "spelt", "-n", address).returncode == 0
    assert run("send", "spelt", "x", "-n", address).returncode == 0
    for process in (broker, nameserver):
        process.send_signal(signal.SIGTERM)
        out, error = process.communicate(timeout=WITHIN_S)
        assert process.returncode == 0, error
        assert json.loads(out)["event"] == "stopped"


def test_ctrl_c_ends_a_follower_with_its_count(start: Start) -> None:
    _, ready = up(start, "--ephemeral")
    assert run("send", "hello", "one", "-n", ready["nameserver"]).returncode == 0
    reader = start("consume", "hello", "--from", "first", "-n", ready["nameserver"], "--json")
    assert document(reader)["body"] == "one"
    reader.send_signal(signal.SIGINT)
    _, error = reader.communicate(timeout=WITHIN_S)
    assert reader.returncode == 0
    assert "Traceback" not in error


def test_ctrl_c_in_a_send_tells_what_was_sent(start: Start) -> None:
    _, ready = up(start, "--ephemeral")
    sender = start("send", "slow", "-n", ready["nameserver"], "--json", stdin=subprocess.PIPE)
    assert sender.stdin is not None
    sender.stdin.write("one\n")
    sender.stdin.flush()
    read = run("consume", "slow", "--from", "first", "--count", "1", "-n", ready["nameserver"])
    while read.returncode == 4:  # the topic appears with the first message
        read = run("consume", "slow", "--from", "first", "--count", "1", "-n", ready["nameserver"])
    sender.send_signal(signal.SIGINT)
    out, error = sender.communicate(timeout=WITHIN_S)
    assert sender.returncode == 130
    assert json.loads(out)["sent"] == 1
    assert "Traceback" not in error


def test_file_arrives_whole_through_a_broker_that_is_killed_half_way(start: Start, tmp_path: Path) -> None:
    nameserver_port, broker_port = free_port(), free_broker_port()
    nameserver = start("nameserver", "--port", str(nameserver_port), "--host", "127.0.0.1", "--json")
    address = document(nameserver)["address"]
    broker_arguments = (
        *(
            "broker",
            "-n",
            address,
            "--port",
            str(broker_port),
            "--host",
            "127.0.0.1",
            "--name",
            "solo",
            "--json",
        ),
        *("--data", str(tmp_path / "store"), "--set", "brokerIP1=127.0.0.1", "--log-level", "error"),
    )
    broker = start(*broker_arguments)
    document(broker)
    sender = start("send", "whole", "-n", address, "--json", "--timeout", "1", stdin=subprocess.PIPE)
    assert sender.stdin is not None
    lines = [f"line {number}" for number in range(4_000)]
    sender.stdin.write("\n".join(lines[:2_000]) + "\n")
    sender.stdin.flush()
    follower = start("consume", "whole", "--from", "first", "--count", "1", "-n", address)
    while follower.wait(WITHIN_S) == 4:
        follower = start("consume", "whole", "--from", "first", "--count", "1", "-n", address)
    broker.kill()
    broker.wait(WITHIN_S)
    sender.stdin.write("\n".join(lines[2_000:]))
    sender.stdin.close()
    sender.stdin = None
    broker = start(*broker_arguments)
    document(broker)
    out, error = sender.communicate(timeout=WITHIN_S)
    assert sender.returncode == 0, out + error
    assert json.loads(out)["sent"] == 4_000
    read = run("consume", "whole", "--from", "first", "--no-follow", "-n", address)
    assert set(read.stdout.splitlines()) == set(lines)


@pytest.mark.parametrize("victim", ["the NameServer", "broker-a", "broker-b"])
def test_process_that_dies_is_named_and_started_again_while_the_rest_stays(start: Start, victim: str) -> None:
    process, ready = up(start, "--ephemeral", "--brokers", "2", "--set", "topicQueueNumsMax=8")
    nameserver, servers = ready["nameserver"], ["the NameServer", "broker-a", "broker-b"]
    assert run("topic", "create", "orders", "-n", nameserver).returncode == 0
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    child = dict(zip(servers, map(int, children), strict=True))[victim]
    os.kill(child, signal.SIGKILL)
    kind = "nameserver" if victim == servers[0] else "broker"
    assert document(process) == {"event": "died", kind: victim, "pid": child}
    back = document(process)
    assert (back["event"], back[kind]) == ("back", victim)
    deadline = time.monotonic() + WITHIN_S
    for broker in ("broker-a", "broker-b"):
        while run("send", "orders", "x", "--queue", f"{broker}/0", "-n", nameserver).returncode:
            assert time.monotonic() < deadline, f"{broker} is not served"
    # Each process has what was set for all.
    for broker in ("broker-a", "broker-b"):
        large = run("topic", "create", "many", "--queues", "9", "--broker", broker, "-n", nameserver)
        assert "topicQueueNumsMax" in large.stderr, broker
    process.send_signal(signal.SIGTERM)
    assert process.wait(WITHIN_S) == 0


def test_nameservers_are_the_controllers_of_a_group(start: Start, tmp_path: Path) -> None:
    """enableControllerInNamesrv: three processes, each a NameServer and a controller; one of them dies."""
    ports = free_ports(8)
    peers = ";".join(f"n{number}-127.0.0.1:{ports[number]}" for number in range(3))
    nameservers: list[tuple[subprocess.Popen[str], str]] = []
    for number in range(3):
        conf = tmp_path / f"n{number}.conf"
        conf.write_text(
            f"listenPort={ports[3 + number]}\nenableControllerInNamesrv=true\ncontrollerDLegerGroup=quorum\n"
            f"controllerDLegerPeers={peers}\ncontrollerDLegerSelfId=n{number}\ncontrollerStorePath={tmp_path / f'n{number}'}\n"
        )
        process = start("nameserver", "-c", str(conf), "--host", "127.0.0.1", "--json")
        nameservers.append((process, document(process)["address"]))
    controllers = ";".join(f"127.0.0.1:{ports[number]}" for number in range(3))
    names = ";".join(address for _, address in nameservers)
    broker = start(
        *(
            "broker",
            "-n",
            names,
            "--port",
            str(ports[6]),
            "--host",
            "127.0.0.1",
            "--name",
            "group-a",
            "--json",
        ),
        *("--data", str(tmp_path / "store"), "--set", "brokerIP1=127.0.0.1"),
        *("--set", f"haListenPort={ports[7]}"),
        *("--set", "enableControllerMode=true", "--set", f"controllerAddr={controllers}"),
    )
    document(broker)
    status = wait_for_status(controllers)
    leader = int(status["leader_id"].removeprefix("n"))
    (described,) = json.loads(run("cluster", "describe", "-n", names, "--json").stdout)
    assert (described["role"], described["epoch"], described["sync_state_set"]) == ("master", "1", "1")
    assert "made it master in epoch 1" in described["role_reason"]
    assert run("send", "hello", "one", "-n", names).returncode == 0
    nameservers[leader][0].kill()
    left = ";".join(f"127.0.0.1:{ports[number]}" for number in range(3) if number != leader)
    wait_for_status(left)
    deadline = time.monotonic() + WITHIN_S
    while run("send", "hello", "two", "-n", names).returncode != 0:
        assert time.monotonic() < deadline, "no member took a message after the leading controller died"
    read = run("consume", "hello", "--from", "first", "--count", "2", "-n", names)
    assert "one" in read.stdout
    assert "two" in read.stdout


def wait_for_status(controllers: str) -> Any:
    """`aerobee ha status` once a controller leads and the group has a master."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        asked = run("ha", "status", "-a", controllers, "--json")
        if asked.returncode == 0:
            status = json.loads(asked.stdout)
            if any(group["master_id"] for group in status["broker_groups"]):
                return status
        assert time.monotonic() < deadline, asked.stdout + asked.stderr
        time.sleep(0.1)
