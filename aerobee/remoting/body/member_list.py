"""GET_CONSUMER_LIST_BY_GROUP 38: the client ids of a group's members, and what Aerobee's brokers add for an id that two clients have."""

from __future__ import annotations

from collections.abc import Iterable

# Behind an id that another client has, in the list that is sent to who shares it; the address of that client follows.
HELD_BY = "@held-by-"


def held_by(client_id: str, address: str) -> str:
    """The entry in place of an id whose queues another client has."""
    return f"{client_id}{HELD_BY}{address}"


def holder_of(client_id: str, member_ids: Iterable[str]) -> str | None:
    """The address of the other client that has this id; None when the list names none."""
    prefix = client_id + HELD_BY
    return next((each.removeprefix(prefix) for each in member_ids if each.startswith(prefix)), None)
