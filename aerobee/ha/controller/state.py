"""Replicated state of the controllers: groups of brokers, their ids, masters, sync state sets. Core, a Raft state
machine.

Follows ReplicasInfoManager of RocketMQ. Invariants:

- A master epoch belongs to one master, or to none, and only grows; so does the epoch of a sync state set.
- A master is in its sync state set. When no member can be elected the set stays: its members may still win later.
- apply() depends on nothing but the state and the command. A command that cannot be carried out is answered. An unreadable command stops the controller: otherwise its state would differ from that of controllers that can read it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from aerobee.errors import MalformedFrame, NewerVersion
from aerobee.ha.controller.codes import ControllerCode
from aerobee.ha.controller.commands import (
    CHECK_CODE_BYTES_MAX,
    REPLICAS_MAX,
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBrokerMetadata,
    Command,
    ElectMaster,
    RegisterBroker,
    RenewSyncStateSet,
    decode_command,
)
from aerobee.ha.controller.election import choose
from aerobee.ha.packed import array, array_of, integer, pack, text, unpack

# Every peer that reaches a controller without a key can apply for ids. A snapshot is packed in one piece, and far smaller than
# RaftConfig.snapshot_bytes_max allows: a state that has no snapshot would end its controllers.
GROUPS_MAX = 1 << 16
STATE_BYTES_MAX = 16 << 20  # 40,000 groups of three brokers; of what group_bytes() counts
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Replica:
    """A broker of a group: its address, and the check code with which it applied for its id."""

    address: str
    check_code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The brokers of one broker name. `master_id` 0: the group has no master now."""

    cluster_name: str
    broker_name: str
    next_id: int = 1
    master_id: int = 0
    master_epoch: int = 0
    set_epoch: int = 0
    in_sync: frozenset[int] = frozenset()
    replicas: dict[int, Replica] = field(default_factory=dict)

    @property
    def master_address(self) -> str:
        """ "" when there is no master."""
        return self.replicas[self.master_id].address if self.master_id else ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a command: a code, a reason, and the group afterwards. `is_role_changed`: the controller must notify
    the group's brokers.
    """

    code: ControllerCode
    remark: str = ""
    group: Group | None = None
    is_role_changed: bool = False


class ControllerState:
    """All groups, by broker name."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self._bytes = 0  # of all groups, by group_bytes()

    # -- reads

    def next_broker_id(self, broker_name: str) -> int:
        """The id that a new broker of this name may take; 1 is the first."""
        group = self.groups.get(broker_name)
        return group.next_id if group is not None else 1

    # -- StateMachine

    def apply(self, index: int, data: bytes) -> Outcome:
        """Apply the command of the log's entry `index`. Raises NewerVersion, and changes nothing then.

        The log's checksums are right and Masters.propose() proposes only what decode_command() reads: so only a
        controller of a newer version can have proposed a command that this one cannot decode.
        """
        try:
            command = decode_command(data)
        except MalformedFrame as error:
            raise NewerVersion(
                f"entry {index} of the controllers' log holds a command of a newer version ({error}): upgrade this controller"
            ) from error
        return self.carry_out(command)

    def snapshot(self) -> bytes:
        """The whole state; the same state gives the same bytes."""
        groups = [
            (
                group.cluster_name,
                group.broker_name,
                group.next_id,
                group.master_id,
                group.master_epoch,
                group.set_epoch,
                sorted(group.in_sync),
                [
                    (each, replica.address, replica.check_code)
                    for each, replica in sorted(group.replicas.items())
                ],
            )
            for _, group in sorted(self.groups.items())
        ]
        return pack((_VERSION, groups))

    def restore(self, data: bytes) -> None:
        """Put a state that snapshot() made in place of this one. Raises MalformedFrame, and changes nothing then."""
        version, groups = array_of(unpack(data, "a controller's state"), "a controller's state", 2)
        if version != _VERSION:
            raise MalformedFrame(f"a controller's state is of version {version!r:.40}")
        found = [_decode_group(each) for each in array(groups, "groups", GROUPS_MAX)]
        self.groups = {group.broker_name: group for group in found}
        self._bytes = sum(map(group_bytes, self.groups.values()))

    # -- commands

    def carry_out(self, command: Command) -> Outcome:
        """apply() for an already decoded command."""
        if isinstance(command, ApplyBrokerId):
            return self._apply_broker_id(command)
        group = self.groups.get(command.broker_name)
        if isinstance(command, RegisterBroker):
            return self._register(command, group)
        if group is None:
            code = ControllerCode.BROKER_METADATA_NOT_EXIST
            if isinstance(command, CleanBrokerMetadata):
                code = ControllerCode.INVALID_CLEAN_BROKER_METADATA
            return Outcome(code, f"no broker of the name {command.broker_name} is known")
        if isinstance(command, AlterSyncStateSet):
            return self._alter(command, group)
        if isinstance(command, RenewSyncStateSet):
            return self._renew(command, group)
        if isinstance(command, ElectMaster):
            return self._elect(command, group)
        if isinstance(command, CleanBrokerMetadata):
            return self._clean(command, group)
        return Outcome(ControllerCode.INVALID_REQUEST, f"{type(command).__name__} is no command", group)

    def _keep(self, group: Group) -> Group:
        self._forget(group.broker_name)
        self.groups[group.broker_name] = group
        self._bytes += group_bytes(group)
        return group

    def _forget(self, broker_name: str) -> None:
        if (known := self.groups.pop(broker_name, None)) is not None:
            self._bytes -= group_bytes(known)

    def _full(self, group: Group) -> Outcome | None:
        """The refusal when the state has no space for `group` in place of the group of its name."""
        known = self.groups.get(group.broker_name)
        before = group_bytes(known) if known is not None else 0
        if (known is None and len(self.groups) >= GROUPS_MAX) or (
            self._bytes - before + group_bytes(group) > STATE_BYTES_MAX
        ):
            return Outcome(
                ControllerCode.INVALID_REQUEST,
                f"the controllers know {len(self.groups)} broker names, {self._bytes} bytes, of at most {GROUPS_MAX} and "
                f"{STATE_BYTES_MAX}: remove brokers that are gone (aerobee ha forget)",
            )
        return None

    def _apply_broker_id(self, command: ApplyBrokerId) -> Outcome:
        group = self.groups.get(command.broker_name) or Group(
            cluster_name=command.cluster_name, broker_name=command.broker_name
        )
        taken = group.replicas.get(command.broker_id)
        if taken is not None and taken.check_code == command.check_code:
            return Outcome(ControllerCode.SUCCESS, group=group)  # its answer was lost
        if command.broker_id != group.next_id or len(group.replicas) >= REPLICAS_MAX:
            return Outcome(
                ControllerCode.BROKER_ID_INVALID,
                f"broker id {command.broker_id} of {command.broker_name} is taken or not the next one, "
                f"{group.next_id}",
                group,
            )
        address = command.check_code.split(";")[0]
        replicas = {**group.replicas, command.broker_id: Replica(address, command.check_code)}
        grown = replace(group, next_id=command.broker_id + 1, replicas=replicas)
        return self._full(grown) or Outcome(ControllerCode.SUCCESS, group=self._keep(grown))

    def _register(self, command: RegisterBroker, group: Group | None) -> Outcome:
        replica = group.replicas.get(command.broker_id) if group is not None else None
        if group is None or replica is None:
            return Outcome(
                ControllerCode.BROKER_NEEDS_TO_BE_REGISTERED,
                f"broker id {command.broker_id} of {command.broker_name} was never given out: apply for one",
                group,
            )
        if replica.address != command.address:
            replicas = {**group.replicas, command.broker_id: replace(replica, address=command.address)}
            moved = replace(group, replicas=replicas)
            return self._full(moved) or Outcome(ControllerCode.SUCCESS, group=self._keep(moved))
        return Outcome(ControllerCode.SUCCESS, group=group)

    def _alter(self, command: AlterSyncStateSet, group: Group) -> Outcome:
        members = frozenset(command.members)
        if members == group.in_sync:
            return Outcome(ControllerCode.ALTER_SYNC_STATE_SET_FAILED, "the set is that already", group)
        if (fenced := _fenced(command, group)) is not None:
            return fenced
        code, remark = ControllerCode.SUCCESS, ""
        if not members <= group.replicas.keys():
            code = ControllerCode.INVALID_REPLICAS
            remark = f"{sorted(members - group.replicas.keys())} are no brokers of {group.broker_name}"
        elif not members <= set(command.alive):
            code = ControllerCode.BROKER_NOT_ALIVE
            remark = f"{sorted(members - set(command.alive))} are not alive"
        elif group.master_id not in members:
            code, remark = ControllerCode.ALTER_SYNC_STATE_SET_FAILED, "the master must be in the set"
        if code is not ControllerCode.SUCCESS:
            return Outcome(code, remark, group)
        kept = self._keep(replace(group, in_sync=members, set_epoch=group.set_epoch + 1))
        return Outcome(ControllerCode.SUCCESS, group=kept)

    def _renew(self, command: RenewSyncStateSet, group: Group) -> Outcome:
        if (fenced := _fenced(command, group)) is not None:
            return fenced
        return Outcome(
            ControllerCode.SUCCESS, group=self._keep(replace(group, set_epoch=group.set_epoch + 1))
        )

    def _elect(self, command: ElectMaster, group: Group) -> Outcome:
        requester, living = command.requester_id, {each.broker_id for each in command.candidates}
        if requester and requester not in group.replicas:
            return Outcome(
                ControllerCode.BROKER_NEEDS_TO_BE_REGISTERED,
                f"broker id {requester} of {group.broker_name} was never given out: apply for one",
                group,
            )
        if group.master_epoch == 0 and requester:
            return self._crown(group, requester)  # nothing was ever written
        is_master_fine = group.master_id in living and group.master_id in group.in_sync
        if is_master_fine and command.preferred_id in (0, group.master_id):
            return Outcome(ControllerCode.MASTER_STILL_EXIST, f"the master {group.master_id} is alive", group)
        winner = choose(
            command.candidates,
            known=group.replicas,
            in_sync=group.in_sync,
            preferred_id=command.preferred_id,
            is_unclean_allowed=command.is_unclean_allowed,
        )
        if winner is not None:
            return self._crown(group, winner.broker_id)
        if command.preferred_id:
            return Outcome(
                ControllerCode.ELECT_MASTER_FAILED,
                f"{command.preferred_id} is not alive or not in sync: nothing was changed",
                group,
            )
        remark = f"none of the in-sync brokers {sorted(group.in_sync)} is alive"
        if requester or not group.master_id:
            return Outcome(ControllerCode.MASTER_NOT_AVAILABLE, remark, group)
        # The old master must not continue in its epoch when it comes back; the set stays, so that it may win again.
        kept = self._keep(replace(group, master_id=0, master_epoch=group.master_epoch + 1))
        return Outcome(ControllerCode.MASTER_NOT_AVAILABLE, remark, kept, is_role_changed=True)

    def _crown(self, group: Group, broker_id: int) -> Outcome:
        kept = self._keep(
            replace(
                group,
                master_id=broker_id,
                master_epoch=group.master_epoch + 1,
                in_sync=frozenset({broker_id}),
                set_epoch=group.set_epoch + 1,
            )
        )
        return Outcome(ControllerCode.SUCCESS, group=kept, is_role_changed=True)

    def _clean(self, command: CleanBrokerMetadata, group: Group) -> Outcome:
        gone = set(command.broker_ids) or set(group.replicas)
        unknown = gone - group.replicas.keys()
        living = gone & set(command.alive)
        if unknown or (living and not command.is_cleaning_living_allowed):
            remark = f"{sorted(unknown)} are unknown" if unknown else f"{sorted(living)} are alive"
            return Outcome(ControllerCode.INVALID_CLEAN_BROKER_METADATA, remark, group)
        replicas = {each: replica for each, replica in group.replicas.items() if each not in gone}
        if not replicas:
            self._forget(group.broker_name)
            return Outcome(ControllerCode.SUCCESS, is_role_changed=bool(group.master_id))
        in_sync = group.in_sync - gone
        is_masterless = group.master_id in gone
        kept = self._keep(
            replace(
                group,
                replicas=replicas,
                in_sync=in_sync,
                set_epoch=group.set_epoch + (in_sync != group.in_sync),
                master_id=0 if is_masterless else group.master_id,
                master_epoch=group.master_epoch + is_masterless,
            )
        )
        return Outcome(ControllerCode.SUCCESS, group=kept, is_role_changed=is_masterless)


def group_bytes(group: Group) -> int:
    """Share of STATE_BYTES_MAX that a group uses: its texts in UTF-8 and, for numbers and lengths, 64 bytes and 48 a
    broker."""
    return (
        64
        + len(group.cluster_name.encode())
        + len(group.broker_name.encode())
        + sum(
            48 + len(each.address.encode()) + len(each.check_code.encode())
            for each in group.replicas.values()
        )
    )


def _decode_group(value: object) -> Group:
    cluster, name, next_id, master_id, master_epoch, set_epoch, in_sync, replicas = array_of(
        value, "a group", 8
    )
    found: dict[int, Replica] = {}
    for each in array(replicas, "replicas", REPLICAS_MAX):
        broker_id, address, check_code = array_of(each, "a replica", 3)
        found[integer(broker_id, "a broker id")] = Replica(
            text(address, "an address", CHECK_CODE_BYTES_MAX),
            text(check_code, "a check code", CHECK_CODE_BYTES_MAX),
        )
    group = Group(
        cluster_name=text(cluster, "a cluster name"),
        broker_name=text(name, "a broker name"),
        next_id=integer(next_id, "the next id"),
        master_id=integer(master_id, "a master's id"),
        master_epoch=integer(master_epoch, "a master epoch"),
        set_epoch=integer(set_epoch, "a set's epoch"),
        in_sync=frozenset(integer(each, "a broker id") for each in array(in_sync, "a set", REPLICAS_MAX)),
        replicas=found,
    )
    if group.master_id and (group.master_id not in found or group.master_id not in group.in_sync):
        raise MalformedFrame(f"the master {group.master_id} of {group.broker_name} is not one of its brokers")
    return group


def _fenced(command: AlterSyncStateSet | RenewSyncStateSet, group: Group) -> Outcome | None:
    """The refusal for another master than the present one, or for a set that is not the newest."""
    if command.master_id != group.master_id or not group.master_id:
        remark = f"the master is {group.master_id}, not {command.master_id}"
        return Outcome(ControllerCode.INVALID_MASTER, remark, group)
    if command.master_epoch != group.master_epoch:
        remark = f"the master epoch is {group.master_epoch}, not {command.master_epoch}"
        return Outcome(ControllerCode.FENCED_MASTER_EPOCH, remark, group)
    if command.set_epoch != group.set_epoch:
        remark = f"the set's epoch is {group.set_epoch}, not {command.set_epoch}"
        return Outcome(ControllerCode.FENCED_SYNC_STATE_SET_EPOCH, remark, group)
    return None
