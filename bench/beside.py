"""A script of bench/ in two checkouts in turns: every figure that it prints, before and now.

    AEROBEE_BENCH_BEFORE=../before python bench/beside.py [--turns 10] [--was bench/lane.py ...] -- bench/clients.py --rounds 1

For scripts that measure this process: those that measure a server take "before" among their --servers. Short turns, many of
them: what else the machine does then meets both. A figure is a line `name: 1.23` or a cell of a table. Of each the least of
all turns, the ratio of the two, and the median of the ratios of neighbours. --was: the script's command in the checkout before,
where it differs; its rows must have the names of now, but for the word in the first column.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

import servers


def figures_of(text: str) -> dict[str, float]:
    """What a script printed: name -> figure. Raises SystemExit when it is nothing."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            names = [cell for cell in cells if not is_number(cell)]
            numbers = [cell for cell in cells if is_number(cell)]
            for column, cell in enumerate(numbers, 1):
                found[" ".join([*names, f"({column})"])] = float(cell)
        elif ": " in line and is_number(line.rpartition(": ")[2]):
            name, _, value = line.rpartition(": ")
            found[name] = float(value)
    if not found:
        raise SystemExit(f"no figure in what was printed:\n{text[-1000:]}")
    return found


def is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


def run(python: str, checkout: Path, command: list[str]) -> dict[str, float]:
    """One turn."""
    done = subprocess.run(
        [python, *command], cwd=checkout, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        raise SystemExit(f"{checkout}: {shlex.join(command)} failed:\n{done.stderr[-1000:]}")
    return figures_of(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--was", default="", help="the command in the checkout before, as one text")
    parser.add_argument("command", nargs="+", help="a script and its arguments, behind --")
    options = parser.parse_args()
    before = Path(os.environ.get(servers.BEFORE, "."))
    ways = (
        (servers.before_python_of(str(before)), before, shlex.split(options.was) or options.command),
        (sys.executable, servers.REPOSITORY, options.command),
    )
    turns: list[tuple[dict[str, float], dict[str, float]]] = []
    for number in range(options.turns):
        # Who begins changes: the second finds the caches warm.
        first, second = (0, 1) if number % 2 == 0 else (1, 0)
        found = {way: run(*ways[way]) for way in (first, second)}
        turns.append((found[0], found[1]))
    print("| figure | before, least | now, least | ratio | median of the pairs |\n|---|---|---|---|---|")
    for name in turns[0][1]:
        pairs = [(was[name], now[name]) for was, now in turns if was.get(name)]
        if pairs:
            least = [min(each) for each in zip(*pairs, strict=True)]
            middle = statistics.median(now / was for was, now in pairs)
            print(
                f"| {name} | {least[0]:.2f} | {least[1]:.2f} | {least[1] / least[0]:.2f} | {middle:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
