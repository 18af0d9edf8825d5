"""The real store on a simulated disk that loses power, tears writes, fails, fills up and flips bits.

    python tests/survival/power_loss.py [--seeds 10000] [--first 1] [--processes 1]

Each seed is one life of a store (tests/simulation/store_world.py says what is done and what must hold). Prints how
many lives of each kind ran; ends with status 1 and the seeds when a promise was broken. One seed again: --first N --seeds 1.
"""

from __future__ import annotations

import argparse
import collections
import json
import logging
import multiprocessing
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.simulation import store_world

FAULTS_SHOWN_MAX = 20


def run_range(first: int, stop: int, step: int) -> list[tuple[int, str]]:
    """Return (seed, what broke) for each seed that broke something."""
    logging.disable(logging.CRITICAL)
    faults = []
    for seed in range(first, stop, step):
        try:
            store_world.run_seed(seed)
        except AssertionError as error:
            faults.append((seed, str(error)))
            if stop - first == 1:
                traceback.print_exc()
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    stop = options.first + options.seeds
    started = time.monotonic()
    ranges = [(options.first + part, stop, options.processes) for part in range(options.processes)]
    if options.processes == 1:
        parts = [run_range(*ranges[0])]
    else:
        with multiprocessing.Pool(options.processes) as pool:
            parts = pool.starmap(run_range, ranges)
    faults = sorted(fault for part in parts for fault in part)
    kinds = collections.Counter(
        store_world.SCENARIOS[seed % len(store_world.SCENARIOS)].__name__
        for seed in range(options.first, stop)
    )
    elapsed_s = time.monotonic() - started
    print(
        json.dumps(
            {
                "seeds": options.seeds,
                "first": options.first,
                "faults": len(faults),
                "lives": dict(kinds),
                "ms_per_seed": round(elapsed_s * 1000 * options.processes / options.seeds, 1),
            },
            indent=1,
        )
    )
    for _, text in faults[:FAULTS_SHOWN_MAX]:
        print(f"FAULT {text}", file=sys.stderr)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
