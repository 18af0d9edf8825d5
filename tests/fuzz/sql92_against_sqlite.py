"""A grammar fuzz: SQL92 filters agree with SQLite on the subset that both define alike.

    python tests/fuzz/sql92_against_sqlite.py [--count 1000000] [--seed 1]

The tree that is evaluated on decoded properties, the function over a stored record's bytes and, where it is built, the
native lane's filter are held to SQLite.
Random expressions over random rows; integers against integer literals, texts with = and <>, IN, BETWEEN, IS NULL, and
all of the three-valued logic. A disagreement ends the run with the seed, the expression and the row.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import sys
import time

from aerobee.broker.filter.program import program_of
from aerobee.broker.filter.record_test import compile_test
from aerobee.broker.filter.sql92 import compile_filter
from aerobee.message import encode_properties, encode_record, pack_host

try:
    from aerobee_native import RecordFilter
except ImportError:  # no native lane is built
    RecordFilter = None

HOST = pack_host("10.0.0.1", 1)
NUMBERS, TEXTS = "ijk", "st"
WORDS = ("x", "y", "z z", "it's", "")
ROWS_PER_EXPRESSION = 4


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def cased(word: str, rng: random.Random) -> str:
    return rng.choice((word, word.lower(), word.capitalize()))


def leaf(rng: random.Random) -> str:
    kind = rng.randrange(6)
    negation = rng.choice(("", "NOT "))
    if kind <= 1:
        sides = [rng.choice(NUMBERS), rng.choice(("=", "<>", "<", "<=", ">", ">=")), str(rng.randint(-5, 5))]
        if rng.random() < 0.3 and sides[1] in ("=", "<>"):
            sides.reverse()
        return " ".join(sides)
    if kind == 2:
        return f"{rng.choice(TEXTS)} {rng.choice(('=', '<>'))} {quoted(rng.choice(WORDS))}"
    if kind == 3:
        return f"{rng.choice(NUMBERS + TEXTS)} {cased('IS', rng)} {negation}NULL"
    if kind == 4:
        words = ", ".join(quoted(rng.choice(WORDS)) for _ in range(rng.randint(1, 3)))
        return f"{rng.choice(TEXTS)} {negation}{cased('IN', rng)} ({words})"
    low, high = sorted((rng.randint(-5, 5), rng.randint(-5, 5)))
    return f"{rng.choice(NUMBERS)} {negation}{cased('BETWEEN', rng)} {low} AND {high}"


def expression(rng: random.Random, depth: int = 0) -> str:
    roll = rng.random()
    if depth >= 4 or roll < 0.3:
        return leaf(rng)
    if roll < 0.45:
        return f"{cased('NOT', rng)} ({expression(rng, depth + 1)})"
    joins = [expression(rng, depth + 1) for _ in range(rng.randint(2, 3))]
    joined = joins[0]
    for part in joins[1:]:
        joined += f" {cased(rng.choice(('AND', 'OR')), rng)} {part}"
    return f"({joined})" if rng.random() < 0.7 else joined


def row(rng: random.Random) -> dict[str, int | str | None]:
    values: dict[str, int | str | None] = {name: rng.choice((None, rng.randint(-5, 5))) for name in NUMBERS}
    values |= {name: rng.choice((None, *WORDS[:-1])) for name in TEXTS}
    return values


def record_of(properties: bytes) -> bytes:
    return encode_record(
        topic=b"T", queue_id=0, queue_offset=0, physical_offset=0, body=b"", properties=properties, born_host=HOST,
        store_host=HOST,
    )  # fmt: skip


def run(count: int, seed: int) -> int:
    """Check `count` pairs of expression and row. Returns the number of expressions; raises on disagreement."""
    rng = random.Random(seed)
    connection = sqlite3.connect(":memory:", cached_statements=0)
    columns = ", ".join(f":{name} AS {name}" for name in NUMBERS + TEXTS)
    done = expressions = 0
    while done < count:
        text = expression(rng)
        expressions += 1
        compiled = compile_filter(text)
        test = compile_test(compiled).text
        program = program_of(compiled)
        native = RecordFilter(program).accepts if RecordFilter is not None and program is not None else None
        for _ in range(min(ROWS_PER_EXPRESSION, count - done)):
            values = row(rng)
            (expected,) = connection.execute(f"SELECT ({text}) FROM (SELECT {columns})", values).fetchone()
            properties = {name: str(value) for name, value in values.items() if value is not None}
            raw = encode_properties(properties).encode()
            outcomes = {compiled.matches(properties), test(b"\x02" + raw)}
            if native is not None:
                outcomes.add(native(record_of(raw)))
            if outcomes != {expected == 1}:
                raise SystemExit(f"seed {seed}, pair {done}: {text!r} on {values}: SQLite says {expected}")
            done += 1
    connection.close()
    return expressions


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    started = time.monotonic()
    expressions = run(options.count, options.seed)
    sys.stdout.write(
        f"{options.count} pairs of {expressions} expressions and rows agree with SQLite {sqlite3.sqlite_version}"
        f"{'' if RecordFilter is None else ', native filter too'}, "
        f"seed {options.seed}, {time.monotonic() - started:.0f} s\n"
    )


if __name__ == "__main__":
    main()
