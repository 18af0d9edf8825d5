"""Server CPU of every kind of message compared with the ordinary one, and with RocketMQ 5.5.0 in the same run.

    python bench/cliffs.py --write [--servers aerobee,aerobee-python,rocketmq] [--seconds 0.8] [--rounds 2] [--kinds pull,pop]

One connection keeps 64 sends, or 8 pulls, pops and batches, outstanding (kinds/cliff_kinds.py says what each kind sends).
The figure is the server's CPU time a message, as in compare.py with what an idle server takes anyway: the least of the
rounds, which are interleaved, so that a busy machine disturbs little. "x ordinary" is the factor to the ordinary kind of the same product
(send, pull of 32, pop of 32, batch of 64), "x RocketMQ" the one to RocketMQ's figure for the same kind. A kind that RocketMQ
does not have is compared with RocketMQ's ordinary one. A JVM gets --warm seconds of each kind first. Some kinds need servers that
are started in another way (kinds/cliff_setups.py): they follow in separate runs.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import results_file, servers
from bench.kinds import cliff_kinds
from bench.kinds.cliff_kinds import KINDS, Frames, Kind, drive
from bench.kinds.cliff_setups import KINDS as SETUP_KINDS
from bench.kinds.cliff_setups import SETUPS, Start
from bench.load.server import process_cpu_s
from bench.load.wire import Link, LoadError
from bench.servers import Server

SETTINGS = cliff_kinds.SETTINGS
SERVERS: dict[str, Start] = {
    "aerobee": servers.aerobee,
    "aerobee-python": servers.aerobee_python,
    "before": servers.before,
    "before-python": servers.before_python,
    "rocketmq": partial(servers.rocketmq, heap="1g"),
}
ALL = (*KINDS, *SETUP_KINDS)
JVM_WARM_S = 10.0  # of the first kind, for what every request needs
POP_REQUESTS = 400  # of a round: they use messages up


@dataclass
class Loaded:
    """One server with a connection, and the frames of the kinds that were prepared."""

    server: Server
    frames: dict[str, Frames]
    links: dict[str, Link]

    def cpu_s(self) -> float:
        return sum(map(process_cpu_s, self.server.pids))

    def prepare(self, kind: Kind, warm_s: float) -> None:
        """Raises LoadError when the server does not take this kind."""
        link = self.links[kind.name] = kind.connect(self.server.port)
        self.frames[kind.name] = kind.frames(link)
        done = self._drive(kind, warm_s, POP_REQUESTS // 4)
        if done.requests - sum(done.refused.values()) < done.requests // 2:
            raise LoadError(f"{self.server.name} refuses {kind.name!r}: replies by code {done.refused}")

    def _drive(self, kind: Kind, seconds: float, pop_requests: int) -> cliff_kinds.Driven:
        link, frames = self.links[kind.name], self.frames[kind.name]
        reads = kind.name.startswith(("pull", "pop"))
        if kind.name.startswith("pop"):
            return drive(link, frames, kind.in_flight, requests=pop_requests, records=True)
        return drive(link, frames, kind.in_flight, until=time.monotonic() + seconds, records=reads)

    def measure(self, kind: Kind, seconds: float) -> float:
        """Microseconds of CPU a message."""
        before = self.cpu_s()
        done = self._drive(kind, seconds, POP_REQUESTS)
        spent = self.cpu_s() - before
        answered = done.requests - sum(done.refused.values())
        messages = done.messages if kind.name.startswith(("pull", "pop")) else answered * kind.messages
        if not messages:
            raise LoadError(f"{self.server.name} delivered nothing for {kind.name!r}: {done}")
        return spent / messages * 1e6


def measured(names: list[str], kinds: list[Kind], options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Server -> kind -> microseconds, the least of the rounds."""
    found: dict[str, dict[str, float]] = {name: {} for name in names}
    for setup, of_it in groupby(kinds, key=lambda kind: kind.setup):
        measure_setup(setup, list(of_it), found, options)
    return found


def measure_setup(
    setup: str, kinds: list[Kind], found: dict[str, dict[str, float]], options: argparse.Namespace
) -> None:
    """Measure kinds at servers that are started alike, and add the figures."""
    with ExitStack() as stack:
        running: dict[str, Loaded] = {}
        for name in found:
            try:
                running[name] = Loaded(
                    stack.enter_context(SETUPS[setup](name, SERVERS[name], SETTINGS)), {}, {}
                )
                if name == "rocketmq":
                    running[name].prepare(kinds[0], JVM_WARM_S)
            except (LoadError, OSError, servers.ServerFailed) as error:
                print(f"{name}, setup {setup!r}: {error}", file=sys.stderr)
        for kind in kinds:
            ready = []
            for name, loaded in running.items():
                if name == "rocketmq" and kind.own:
                    continue
                try:
                    loaded.prepare(kind, options.warm if name == "rocketmq" else 0.3)
                    ready.append(name)
                except (LoadError, OSError) as error:
                    print(f"{name}, {kind.name}: {error}", file=sys.stderr)
            for _ in range(options.rounds):
                for name in list(ready):
                    try:
                        cost = running[name].measure(kind, options.seconds)
                    except (LoadError, OSError) as error:
                        print(f"{name}, {kind.name}: {error}", file=sys.stderr)
                        ready.remove(name)
                        continue
                    found[name][kind.name] = min(cost, found[name].get(kind.name, cost))
            for name in ready:
                running[name].links.pop(kind.name).close()
            cells = ", ".join(f"{name} {found[name][kind.name]:.2f}" for name in ready)
            print(f"{kind.name}: {cells}", file=sys.stderr, flush=True)


def table(found: dict[str, dict[str, float]], kinds: list[Kind]) -> list[str]:
    rocketmq = found.get("rocketmq", {})
    names = [name for name in found if name != "rocketmq"]
    head = [f"{name} | x ordinary | x RocketMQ" if rocketmq else f"{name} | x ordinary" for name in names]
    lines = [" | ".join(["| kind", *(["RocketMQ"] if rocketmq else []), *head]) + " |"]
    lines.append("|---" * (lines[0].count("|") - 1) + "|")
    for kind in kinds:
        other = rocketmq.get(kind.name, rocketmq.get(kind.base) if kind.own else None)
        cells = [kind.name]
        if rocketmq:
            own = " (send)" if kind.own else ""
            cells.append("" if other is None else f"{other:.2f}{own}")
        for name in names:
            cost, base = found[name].get(kind.name), found[name].get(kind.base)
            cells.append("" if cost is None else f"{cost:.2f}")
            cells.append("" if cost is None or not base else f"{cost / base:.1f}")
            if rocketmq:
                cells.append("" if cost is None or not other else f"{cost / other:.2f}")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--servers", default="aerobee,aerobee-python,rocketmq", help="comma list (default all)")
    add("--seconds", type=float, default=0.8, help="of one round of one kind (default 0.8)")
    add("--rounds", type=int, default=2)
    add(
        "--warm",
        type=float,
        default=2.5,
        help="seconds of each kind before RocketMQ's first round (default 2.5)",
    )
    add("--kinds", default="", help="comma list of beginnings of names; default: all")
    add("--write", action="store_true", help="write bench/results/cliffs.json")
    options = parser.parse_args()
    wanted = tuple(options.kinds.split(","))
    kinds = [kind for kind in ALL if kind.name.startswith(wanted)]
    found = measured(options.servers.split(","), kinds, options)
    print("\n".join(["server CPU, us a message\n", *table(found, kinds)]))
    if options.write:
        results_file.write("cliffs", {"us": found, "bases": {kind.name: kind.base for kind in ALL}})


if __name__ == "__main__":
    main()
