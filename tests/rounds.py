"""How many random examples a test tries: all of them in `make test` and by hand, a fifth in `make quick`."""

import os

QUICK_PART = 5


def rounds(count: int) -> int:
    """`count`, or a fifth of it (rounded up) where AEROBEE_QUICK is set, as scripts/quick does."""
    return -(-count // QUICK_PART) if os.environ.get("AEROBEE_QUICK") else count
