"""A job under Spark Connect: a separate server, this process its client over gRPC. Prints what it found as JSON.

.venv-spark/bin/python tests/spark/connect_job.py NAMESERVERS DIRECTORY
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def main(nameservers: str, directory: Path) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    os.environ["SPARK_TESTING"] = "1"  # a port that is free
    from pyspark.sql import SparkSession

    import aerobee.spark

    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    builder = SparkSession.builder.remote("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    aerobee.spark.register(spark)

    def numbers(topic: str, **options: str) -> list[int]:
        frame = (
            spark.read.format("rocketmq").options(nameservers=nameservers, subscribe=topic, **options).load()
        )
        return sorted(int(bytes(row.value)) for row in frame.select("value").collect())

    def stream(topic: str) -> None:
        source = spark.readStream.format("rocketmq").options(
            nameservers=nameservers, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger="10"
        )
        query = (
            source.load()
            .select("value", "key")
            .writeStream.format("rocketmq")
            .options(nameservers=nameservers, topic=topic, dedup="true")
            .option("checkpointLocation", str(directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    found: dict[str, object] = {"session": type(spark).__module__, "orders": numbers("orders")}
    frame = spark.read.format("rocketmq").options(nameservers=nameservers, subscribe="orders").load()
    found["pushed"] = frame.where("tags = 'B'").count()
    written = frame.select("value").write.format("rocketmq").options(nameservers=nameservers, topic="copies")
    written.mode("append").save()
    found["copies"] = numbers("copies")
    stream("streamed")
    stream("streamed")  # continues at its checkpoint: nothing is left
    found["streamed"] = numbers("streamed")
    try:
        frame.select("value").where("value = 'x'").write.format("rocketmq").options(
            nameservers=nameservers, topik="x"
        ).mode("append").save()
    except Exception as error:
        found["error"] = str(error)
    dead = aerobee.spark.dead_letters(spark, "absent", nameservers=nameservers)
    found["dead"] = dead.columns[-1]
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
