"""A Kafka broker of one node (KRaft) for bench/spark.py, from the jars that scripts/setup-bench-spark fetched."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from bench.servers import REPOSITORY, Server, ServerFailed, broker_ports, scratch

INTEROP = Path(os.environ.get("AEROBEE_INTEROP_DIR", REPOSITORY / ".interop"))
JARS = INTEROP / "kafka-jars"
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
# Kafka's own start script has 1 GB and G1.
FLAGS = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")


@contextlib.contextmanager
def kafka(*, partitions: int) -> Iterator[Server]:
    """Broker and controller in one process, as its quick start has it; topics are made at their first message."""
    if not JARS.is_dir():
        raise ServerFailed(f"{JARS} is missing: run scripts/setup-bench-spark")
    with scratch("kafka") as directory:
        port, controller_port = broker_ports(2)
        server = Server("kafka", port, directory)
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(directory / "logs"),
            "num.partitions": str(partitions),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
        }
        path = directory / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        java = ["java", "-cp", f"{JARS}/*"]
        form = [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(path)]
        done = subprocess.run(form, capture_output=True, text=True, cwd=directory, check=False)
        if done.returncode:
            raise ServerFailed(f"Kafka's storage cannot be made: {done.stdout}{done.stderr}")
        try:
            server.spawn([*java, *FLAGS, "kafka.Kafka", str(path)], "kafka.log")
            server.wait_for_port(port, "kafka.log")
            yield server
        finally:
            server.stop()
