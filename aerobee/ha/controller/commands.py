"""Commands on which the controllers of a quorum agree, and their encoding. Core.

A command is MessagePack: `[code, fields in order]`; the code is that of the request that causes it. A command carries
the data that only the leader knows at that moment (live brokers and their log ends), so that every controller that
applies it reaches the same state. Source ControllerManager, ReplicasInfoManager of RocketMQ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from aerobee.errors import MalformedFrame
from aerobee.ha.packed import array, array_of, flag, integer, pack, signed, text, unpack

REPLICAS_MAX = 1_024  # of one group
CHECK_CODE_BYTES_MAX = 1_024


class Candidate(NamedTuple):
    """A live broker, with the values of its last heartbeat."""

    broker_id: int
    epoch: int  # of the last mastership that it knows; -1 before the first
    max_offset: int
    priority: int  # the smaller one is preferred


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The group of the command."""

    CODE: ClassVar[int] = 0
    broker_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterSyncStateSet(Command):
    """The master changes its sync state set. The epochs are those that the master knows; `alive` are the brokers that
    may be in the set.
    """

    CODE: ClassVar[int] = 1001
    master_id: int
    master_epoch: int
    set_epoch: int
    members: tuple[int, ...]
    alive: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewSyncStateSet(Command):
    """The master keeps its sync state set and requests a new epoch for it, which invalidates all older requests for a
    change. Aerobee-specific: 1001 with `newSetEpochWanted`.
    """

    CODE: ClassVar[int] = 911_001
    master_id: int
    master_epoch: int
    set_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectMaster(Command):
    """Elect a master. `requester_id` 0: the controller itself, or an administrator; `preferred_id` 0: no preference.

    `is_unclean_allowed`: a broker that is not in sync may win, and what only others have is lost then.
    """

    CODE: ClassVar[int] = 1002
    requester_id: int
    preferred_id: int
    is_unclean_allowed: bool
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker(Command):
    """A broker that already has an id registers its address."""

    CODE: ClassVar[int] = 1003
    cluster_name: str
    broker_id: int
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanBrokerMetadata(Command):
    """Remove brokers of a group; all of them when `broker_ids` is empty. Live brokers only if the command permits
    it.
    """

    CODE: ClassVar[int] = 1011
    broker_ids: tuple[int, ...]
    is_cleaning_living_allowed: bool
    alive: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyBrokerId(Command):
    """A broker applies for an id. `check_code` is `address;ms`: a request with the same check code gets the same id."""

    CODE: ClassVar[int] = 1013
    cluster_name: str
    broker_id: int
    check_code: str


def _ids(value: object, what: str) -> tuple[int, ...]:
    return tuple(integer(each, what) for each in array(value, what, REPLICAS_MAX))


def _candidates(value: object, what: str) -> tuple[Candidate, ...]:
    found = []
    for each in array(value, what, REPLICAS_MAX):
        broker_id, epoch, max_offset, priority = array_of(each, what, 4)
        found.append(
            Candidate(
                integer(broker_id, what),
                signed(epoch, what),
                signed(max_offset, what),
                signed(priority, what),
            )
        )
    return tuple(found)


def _name(value: object, what: str) -> str:
    found = text(value, what)
    if not found:
        raise MalformedFrame(f"{what} is empty")
    return found


def _check_code(value: object, what: str) -> str:
    return text(value, what, CHECK_CODE_BYTES_MAX)


_COMMON = (("broker_name", _name),)
FIELDS: dict[type[Command], tuple[tuple[str, Callable[[object, str], Any]], ...]] = {
    AlterSyncStateSet: (
        *_COMMON,
        ("master_id", integer),
        ("master_epoch", integer),
        ("set_epoch", integer),
        ("members", _ids),
        ("alive", _ids),
    ),
    RenewSyncStateSet: (
        *_COMMON,
        ("master_id", integer),
        ("master_epoch", integer),
        ("set_epoch", integer),
    ),
    ElectMaster: (
        *_COMMON,
        ("requester_id", integer),
        ("preferred_id", integer),
        ("is_unclean_allowed", flag),
        ("candidates", _candidates),
    ),
    RegisterBroker: (*_COMMON, ("cluster_name", _name), ("broker_id", integer), ("address", _name)),
    CleanBrokerMetadata: (
        *_COMMON,
        ("broker_ids", _ids),
        ("is_cleaning_living_allowed", flag),
        ("alive", _ids),
    ),
    ApplyBrokerId: (
        *_COMMON,
        ("cluster_name", _name),
        ("broker_id", integer),
        ("check_code", _check_code),
    ),
}
_BY_CODE = {cls.CODE: cls for cls in FIELDS}


def encode_command(command: Command) -> bytes:
    """The bytes that go into the log; the log has the checksum."""
    cls = type(command)
    return pack((cls.CODE, *(getattr(command, name) for name, _ in FIELDS[cls])))


def decode_command(data: bytes) -> Command:
    """Read what encode_command made. Raises MalformedFrame."""
    values = array(unpack(data, "a command"), "a command", 16)
    if not values:
        raise MalformedFrame("a command is empty")
    cls = _BY_CODE.get(integer(values[0], "the code of a command"))
    if cls is None:
        raise MalformedFrame(f"a command has the unknown code {values[0]!r:.40}")
    fields = FIELDS[cls]
    rest = array_of(values[1:], f"{cls.__name__}'s fields", len(fields))
    return cls(**{name: check(value, name) for (name, check), value in zip(fields, rest, strict=True)})
