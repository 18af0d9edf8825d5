"""One phase of a load: its worker processes, what the server used meanwhile, and the figures that come of both."""

from __future__ import annotations

import argparse
import collections
import ctypes
import multiprocessing
import time
import traceback
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_pipes

from bench.load.server import machine_busy_s, sample_server
from bench.load.wire import LoadError
from bench.load.workers import (
    Tally,
    Window,
    count_in,
    run_e2e_consumer,
    run_e2e_producer,
    run_oneway,
    run_pull,
    run_send,
    sleep_until,
)


def child(
    target: str, options: argparse.Namespace, worker: int, window_pipe: Connection, shared: dict
) -> None:
    """Body of a worker process: say ready, take the window (a consumer begins immediately), run, hand back a Tally or an error."""
    try:
        window_pipe.send("ready")
        if target == "consumer":
            tally = run_e2e_consumer(options, shared)
        elif target == "producer":
            tally = run_e2e_producer(options, window_pipe.recv(), shared)
        else:
            run = {"pull": run_pull, "oneway": run_oneway}.get(target, run_send)
            tally = run(options, worker, window_pipe.recv())
        window_pipe.send(tally)
    except LoadError as error:
        window_pipe.send(f"worker {worker}: {error}")
    except BaseException:
        window_pipe.send(f"worker {worker}: {traceback.format_exc()}")


class Run:
    """Start the workers of one phase, time it, sample the server, gather the tallies."""

    def __init__(self, options: argparse.Namespace, targets: list[str]) -> None:
        self.options = options
        self._context = multiprocessing.get_context("fork")
        self._counters = self._context.RawArray(ctypes.c_longlong, len(targets))
        count_in(self._counters)
        self.shared = {
            name: self._context.Value("q", 0) for name in ("sent", "ready", "measure_ns", "end_ns")
        }
        self._workers = []
        for worker, target in enumerate(targets):
            ours, theirs = self._context.Pipe()
            number = 0 if target in ("producer", "consumer") else worker
            process = self._context.Process(target=child, args=(target, options, number, theirs, self.shared))
            process.start()
            theirs.close()
            self._workers.append((process, ours, target))

    def _take(self, pipe: Connection) -> object:
        try:
            answer = pipe.recv()
        except EOFError:
            answer = "a worker died"
        if isinstance(answer, str) and answer != "ready":
            for process, _pipe, _target in self._workers:
                process.kill()
            raise LoadError(answer)
        return answer

    def _await_ready(self, consumers: int) -> None:
        """Consumers have parked their pulls: what is sent before that would not be theirs."""
        while self.shared["ready"].value < consumers:
            for process, pipe, _target in self._workers:
                if pipe.poll() or not process.is_alive():
                    self._take(pipe)  # it failed
            time.sleep(0.01)

    def measure(self) -> tuple[list[Tally], dict[str, float]]:
        options = self.options
        for _process, pipe, _target in self._workers:
            self._take(pipe)
        self._await_ready(sum(target == "consumer" for _process, _pipe, target in self._workers))
        start = time.monotonic_ns() + 150_000_000 + 30_000_000 * len(self._workers)
        by_count = bool(options.count) or (options.mode == "pull" and not options.duration)
        warm_ns = 0 if by_count else int(options.warmup * 1e9)
        end = 0 if by_count else start + warm_ns + int(options.duration * 1e9)
        window = Window(start, start + warm_ns, end)
        self.shared["measure_ns"].value, self.shared["end_ns"].value = window.measure_ns, window.end_ns
        for _process, pipe, target in self._workers:
            if target != "consumer":
                pipe.send(window)
        sleep_until(window.measure_ns)
        before, busy_before, clock_before = (
            sample_server(options.server_pid, self._counters),
            machine_busy_s(),
            time.monotonic(),
        )
        rss_peak = anon_peak = 0.0
        waiting = [pipe for _process, pipe, _target in self._workers]
        tallies: list[Tally] = []
        after, busy_after, clock_after = before, busy_before, clock_before
        frozen = False
        while waiting:
            left = (end - time.monotonic_ns()) / 1e9 if end else 0.25
            for pipe in wait_for_pipes(waiting, timeout=min(0.25, max(0.0, left)) if not frozen else 1.0):
                tallies.append(self._take(pipe))  # type: ignore[arg-type]
                waiting.remove(pipe)  # type: ignore[arg-type]
            if not frozen:
                after, busy_after, clock_after = (
                    sample_server(options.server_pid, self._counters),
                    machine_busy_s(),
                    time.monotonic(),
                )
                rss_peak, anon_peak = max(rss_peak, after.rss_mb), max(anon_peak, after.anon_mb)
                frozen = bool(end) and time.monotonic_ns() >= end
        for process, _pipe, _target in self._workers:
            process.join()
        figures = {
            "server_cpu_s": after.cpu_s - before.cpu_s,
            "server_messages": after.messages - before.messages,
            "machine_busy_s": busy_after - busy_before,
            "measured_s": clock_after - clock_before,
            "rss_mb": rss_peak,
            "rss_anon_mb": anon_peak,
            "rss_peak_mb": after.peak_mb,
        }
        return tallies, figures


def percentiles(counts: collections.Counter[int]) -> dict[str, float]:
    """p50, p90, p99, p99.9, max and mean in milliseconds of microseconds -> count."""
    total = sum(counts.values())
    if not total:
        return {}
    wanted = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
    result, passed = {}, 0
    for value in sorted(counts):
        passed += counts[value]
        for name in [name for name, share in wanted.items() if passed >= share * total]:
            result[name] = value / 1000
            del wanted[name]
    result["max"] = max(counts) / 1000
    result["mean"] = round(sum(value * count for value, count in counts.items()) / total / 1000, 3)
    return result


def merge(parts: list[dict[int, int]]) -> collections.Counter[int]:
    merged = collections.Counter[int]()
    for part in parts:
        merged.update(part)
    return merged


def summarize(
    options: argparse.Namespace, tallies: list[Tally], figures: dict[str, float]
) -> dict[str, object]:
    messages = sum(tally.messages for tally in tallies)
    seconds = figures["measured_s"] or 1e-9
    client_cpu_s = sum(tally.client_cpu_s for tally in tallies)
    result: dict[str, object] = {
        "mode": options.mode, "topic": options.topic, "size": options.size, "queues": options.queues,
        "connections": options.connections, "in_flight": options.in_flight, "batch": options.batch,
        "messages": messages, "total": sum(tally.total for tally in tallies),
        "seconds": round(seconds, 3), "msg_per_s": round(figures["server_messages"] / seconds, 1),
        "codes": dict(merge([tally.codes for tally in tallies])),
        "latency_ms": percentiles(merge([tally.latency for tally in tallies])),
    }  # fmt: skip
    if not result["latency_ms"]:
        del result["latency_ms"]
    notes = [tally.note for tally in tallies if tally.note]
    if notes:
        result["notes"] = notes
    all_cpu_share = messages / max(1, sum(tally.total for tally in tallies))
    result["client_us_per_msg"] = round(client_cpu_s * all_cpu_share / max(1, messages) * 1e6, 2)
    if options.server_pid:
        others = figures["machine_busy_s"] - figures["server_cpu_s"] - client_cpu_s * all_cpu_share
        result |= {
            "server_us_per_msg": round(figures["server_cpu_s"] / max(1, figures["server_messages"]) * 1e6, 3),
            "server_cpu_percent": round(figures["server_cpu_s"] / seconds * 100, 1),
            "other_cpu_percent": round(max(0.0, others) / seconds * 100, 1),
            "server_rss_mb": round(figures["rss_mb"], 1),
            "server_rss_anon_mb": round(figures["rss_anon_mb"], 1),
            "server_rss_peak_mb": round(figures["rss_peak_mb"], 1),
        }
    return result
