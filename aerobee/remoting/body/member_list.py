"""GET_CONSUMER_LIST_BY_GROUP 38: the client ids of a group's members, and Aerobee's entry for an id that two
clients share.
"""

from __future__ import annotations

from collections.abc import Iterable

# Suffix of a shared client id in the list for the second client; the address of the first client follows.
HELD_BY = "@held-by-"


def held_by(client_id: str, address: str) -> str:
    """The entry for a shared id, whose queues the client at this address has."""
    return f"{client_id}{HELD_BY}{address}"


def holder_of(client_id: str, member_ids: Iterable[str]) -> str | None:
    """The address of the other client that has this id; None when the list names none."""
    prefix = client_id + HELD_BY
    return next((each.removeprefix(prefix) for each in member_ids if each.startswith(prefix)), None)
