"""A page of metrics rendered by prometheus-client and by aerobee.monitoring.page: time and memory, by number of series.

    python bench/metrics_exposition.py            pages of 1,000 and 100,000 series

`first` renders a page with nothing kept, `again` the next page when no value and when every value has changed. Each figure is from a separate
process; memory is the growth of its peak over the time before the first page.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from time import process_time

COUNTS = (1_000, 100_000)
RENDERERS = ("prometheus-client, metrics objects", "prometheus-client, collector", "aerobee.monitoring.page")
SLICE = 256  # samples that share a token, as a broker's counters do


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def labels_of(number: int) -> dict[str, str]:
    return {
        "cluster": "DefaultCluster",
        "topic": f"orders-{number % 5000}",
        "consumer_group": f"billing-{number // 5000}",
    }


def by_objects(count: int) -> tuple[Callable[[], int], Callable[[], None]]:
    from prometheus_client import CollectorRegistry, Counter, generate_latest

    registry = CollectorRegistry()
    counter = Counter("messages_out", "Messages.", list(labels_of(0)), registry=registry)
    children = [counter.labels(**labels_of(number)) for number in range(count)]

    def change() -> None:
        for child in children:
            child.inc()

    return lambda: len(generate_latest(registry)), change


def by_collector(count: int) -> tuple[Callable[[], int], Callable[[], None]]:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily
    from prometheus_client.registry import Collector

    values = [0] * count
    labels = [tuple(labels_of(number).values()) for number in range(count)]

    class Values(Collector):
        def collect(self):
            family = CounterMetricFamily("messages_out", "Messages.", labels=list(labels_of(0)))
            for text, value in zip(labels, values, strict=True):
                family.add_metric(text, value)
            yield family

    registry = CollectorRegistry()
    registry.register(Values())

    def change() -> None:
        values[:] = [value + 1 for value in values]

    return lambda: len(generate_latest(registry)), change


def by_page(count: int) -> tuple[Callable[[], int], Callable[[], None]]:
    from aerobee.monitoring.exposition import COUNTER, Family, Slice, label_text
    from aerobee.monitoring.page import PageMaker

    values = [0] * count
    labels = [label_text(labels_of(number)) for number in range(count)]
    changes = 0
    maker = PageMaker()

    def samples(start: int) -> Callable[[], object]:
        return lambda: zip(labels[start : start + SLICE], values[start : start + SLICE], strict=True)

    def make() -> int:
        slices = [Slice((start, changes), samples(start)) for start in range(0, count, SLICE)]
        for _ in maker.make([Family("messages_out_total", COUNTER, "Messages.", slices=slices)], 0.0):
            pass
        return maker.page.length

    def change() -> None:
        nonlocal changes
        changes += 1
        values[:] = [value + 1 for value in values]

    return make, change


def measured(way: int, count: int) -> dict[str, float]:
    make, change = (by_objects, by_collector, by_page)[way](count)
    before_mb, found = peak_mb(), {}
    for name in ("first", "again, unchanged", "again, changed"):
        if name.endswith(" changed"):
            change()
        begin = process_time()
        size = make()
        found[name] = (process_time() - begin) * 1000
    return {**found, "growth_mb": peak_mb() - before_mb, "total_mb": peak_mb(), "page_mb": size / 1e6}


def main(arguments: list[str]) -> None:
    if arguments:
        print(json.dumps(measured(int(arguments[0]), int(arguments[1]))))
        return
    print(
        "| series | rendered by | first, ms | again, unchanged, ms | again, changed, ms | memory growth, MB | process, MB |"
    )
    print("|---|---|---|---|---|---|---|")
    for count in COUNTS:
        for way, name in enumerate(RENDERERS):
            ended = subprocess.run(
                [sys.executable, __file__, str(way), str(count)], capture_output=True, text=True, check=True
            )
            found = json.loads(ended.stdout)
            columns = [
                f"{found[key]:.1f}"
                for key in ("first", "again, unchanged", "again, changed", "growth_mb", "total_mb")
            ]
            print(f"| {count:,} | {name} | {' | '.join(columns)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
