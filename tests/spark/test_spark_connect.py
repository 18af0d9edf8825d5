"""The source and the sink under Spark Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from aerobee.message import Message
from aerobee.testing.threaded_cluster import ThreadedCluster


def test_source_sink_and_stream_work_under_spark_connect(tmp_path: Path):
    with ThreadedCluster(brokers=2, broker_config={"dedupWindowMillis": "600000"}) as own:
        for topic in ("orders", "copies", "streamed"):
            own.create_topic(topic, 2)
        with own.producer() as producer:
            for n in range(40):
                producer.send(Message("orders", b"%d" % n, tag="AB"[n % 2], keys=(f"k{n}",)))
        done = subprocess.run(
            [
                sys.executable,
                str(Path(__file__).with_name("connect_job.py")),
                own.nameserver_address,
                str(tmp_path),
            ],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env={
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("SPARK_", "PYSPARK_"))
            },
        )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    everything = list(range(40))
    assert found["session"].startswith("pyspark.sql.connect")
    assert (found["orders"], found["pushed"]) == (everything, 20)
    assert (found["copies"], found["streamed"]) == (everything, everything)
    assert "option topik is not known" in found["error"]
    assert found["dead"] == "died_ts"
