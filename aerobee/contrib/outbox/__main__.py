"""`python -m aerobee.contrib.outbox`: a relay for SQLAlchemy applications."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys

from aerobee.contrib.outbox.relay import BATCH_ROWS, POLL_S
from aerobee.contrib.outbox.relay_process import run_relay
from aerobee.host_port import NAMESERVER_DEFAULT


def main() -> int:
    """Run one relay; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m aerobee.contrib.outbox", description="Send the rows of an outbox into their topics."
    )
    parser.add_argument(
        "--database", required=True, metavar="URL", help="SQLAlchemy URL with an asynchronous driver."
    )
    parser.add_argument(
        "--nameserver",
        default=NAMESERVER_DEFAULT,
        metavar="HOST:PORT",
        help="NameServers, separated by ';' (default: %(default)s).",
    )
    parser.add_argument("--create-tables", action="store_true", help="Create missing tables first.")
    parser.add_argument(
        "--batch",
        type=int,
        default=BATCH_ROWS,
        help="Maximum number of rows of one transaction (default: %(default)s).",
    )
    parser.add_argument(
        "--poll",
        type=float,
        default=POLL_S,
        metavar="SECONDS",
        help="Interval between two looks at an empty table (default: %(default)s).",
    )
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(
        run_relay(
            options.database,
            options.nameserver,
            creates_tables=options.create_tables,
            batch_rows=options.batch,
            poll_s=options.poll,
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
