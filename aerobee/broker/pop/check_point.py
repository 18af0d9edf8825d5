"""Check points and acknowledgements of POP, as stored in the revive topic (PopCheckPoint, AckMsg, BatchAckMsg).

One check point (CK) records the messages of one queue that one pop delivered, and their invisible time:

    {"bm":0,"bn":broker,"c":group,"d":[0,1],"it":60000,"n":2,"pt":pop time,"q":queue id,"reviveTime":pt+it,
     "ro":0,"so":start offset,"sp":false,"t":topic}

`d` are the offsets of the messages, relative to `so`; if an old broker omitted it, message i has offset so + i. Bit i
of `bm` says that message i is acknowledged. "rp" counts how often the check point was stored again.

    {"ao":ack offset,"bn","c","pt","q","so","t"}          one acknowledgement
    {"ao":0,"aol":[offsets],"bn","c","pt","q","so","t"}   several of one check point

All of them are messages of rmq_sys_REVIVE_LOG_<cluster>, queue = revive queue id, that become due in the timer: a check
point one second before its revive time, an acknowledgement at the revive time. Core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from aerobee.errors import MalformedFrame
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields

CK_TAG, ACK_TAG, BATCH_ACK_TAG = "ck", "ack", "bAck"
CLOCK_SLACK_MS = 1_000  # a pop time further in the future means that the clock was set back since
CK_LEAD_MS = 1_000  # time by which a check point reaches the revive queue before its acknowledgements
MESSAGES_MAX = 32  # messages per check point: the bits of `bm` (a Java int)
OFFSET_DISTANCE_MAX = (1 << 31) - 1  # `d` holds Java ints

CheckPointKey = tuple[str, str, int, int, int]  # topic, group, queue id, start offset, pop time


@dataclass(slots=True, kw_only=True)
class CheckPoint:
    """Messages of one queue delivered by one pop. Times in ms."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    offsets: tuple[int, ...]  # absolute queue offsets, growing
    pop_time: int
    invisible_ms: int
    broker_name: str
    bit_map: int = 0
    suspend: bool = False  # redelivered without counting a try
    re_put_times: int = 0
    revive_offset: int = field(default=-1, compare=False)  # its offset in the revive queue

    @property
    def revive_time(self) -> int:
        """Time at which unacknowledged messages are redelivered, ms."""
        return self.pop_time + self.invisible_ms

    @property
    def key(self) -> CheckPointKey:
        """Key of the check point in the in-flight table."""
        return (self.topic, self.group, self.queue_id, self.start_offset, self.pop_time)

    @property
    def all_bits(self) -> int:
        """A bit for each of its messages."""
        return (1 << len(self.offsets)) - 1

    @property
    def is_acked(self) -> bool:
        """Whether every message of it is acknowledged."""
        return self.bit_map & self.all_bits == self.all_bits

    @property
    def unacked(self) -> tuple[int, ...]:
        """Offsets without an acknowledgement."""
        return tuple(offset for i, offset in enumerate(self.offsets) if not self.bit_map >> i & 1)

    def is_unacked(self, offset: int) -> bool:
        """Whether an offset was delivered with this check point and is not acknowledged."""
        try:
            return not self.bit_map >> self.offsets.index(offset) & 1
        except ValueError:
            return False

    def ack(self, offset: int) -> bool:
        """Record an acknowledgement. False: this offset was not delivered with this check point."""
        try:
            self.bit_map |= 1 << self.offsets.index(offset)
        except ValueError:
            return False
        return True

    def encode(self) -> bytes:
        """The body of its record, JSON as RocketMQ's PopCheckPoint."""
        tree: dict[str, object] = {
            "bm": self.bit_map,
            "bn": self.broker_name,
            "c": self.group,
            "d": [offset - self.start_offset for offset in self.offsets],
            "it": self.invisible_ms,
            "n": len(self.offsets),
            "pt": self.pop_time,
            "q": self.queue_id,
            "reviveTime": self.revive_time,
            "ro": 0,
            "so": self.start_offset,
            "sp": self.suspend,
            "t": self.topic,
        }
        if self.re_put_times:
            tree["rp"] = str(self.re_put_times)
        return fastjson.dumps(tree)

    @property
    def unique_key(self) -> str:
        """The UNIQ_KEY of its record."""
        return (
            f"{self.topic}@{self.queue_id}@{self.start_offset}@{self.group}@{self.pop_time}"
            f"@{self.broker_name}@{CK_TAG}"
        )


@dataclass(slots=True, kw_only=True)
class Acks:
    """Acknowledged offsets of one check point. Treated as immutable, but not frozen: a frozen dataclass costs five
    times as much to create.
    """

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_time: int
    broker_name: str
    offsets: tuple[int, ...]

    @property
    def key(self) -> CheckPointKey:
        """The key of the check point that these messages belong to."""
        return (self.topic, self.group, self.queue_id, self.start_offset, self.pop_time)

    @property
    def tag(self) -> str:
        """The tag of its record: one acknowledgement, or several."""
        return ACK_TAG if len(self.offsets) == 1 else BATCH_ACK_TAG

    def encode(self) -> bytes:
        """The body of its record, JSON as RocketMQ's AckMsg or BatchAckMsg."""
        tree: dict[str, object] = {"ao": self.offsets[0]}
        if len(self.offsets) > 1:
            tree = {"ao": 0, "aol": list(self.offsets)}
        tree.update(
            bn=self.broker_name,
            c=self.group,
            pt=self.pop_time,
            q=self.queue_id,
            so=self.start_offset,
            t=self.topic,
        )
        return fastjson.dumps(tree)

    @property
    def unique_key(self) -> str:
        """The UNIQ_KEY of its record."""
        if len(self.offsets) == 1:
            return (
                f"{self.topic}@{self.queue_id}@{self.offsets[0]}@{self.group}@{self.pop_time}"
                f"@{self.broker_name}@{ACK_TAG}"
            )
        return (
            f"{self.topic}@{self.queue_id}@{list(self.offsets)}@{self.group}@{self.pop_time}@{BATCH_ACK_TAG}"
        )


def decode_check_point(body: bytes) -> CheckPoint:
    """Raises MalformedFrame unless the body is a check point."""
    fields = fastjson.loads_object(body, "a POP check point")
    start, count = json_fields.integer(fields, "so"), json_fields.integer(fields, "n", 0)
    distances = _integers(fields.get("d"))
    if not 0 <= count <= MESSAGES_MAX:
        raise MalformedFrame(
            f"a POP check point claims {count} messages, at most {MESSAGES_MAX} are possible"
        )
    if len(distances) != count:
        distances = tuple(range(count))
    return CheckPoint(
        topic=json_fields.text(fields, "t"),
        group=json_fields.text(fields, "c"),
        queue_id=json_fields.integer(fields, "q"),
        start_offset=start,
        offsets=tuple(start + distance for distance in distances),
        pop_time=json_fields.integer(fields, "pt"),
        invisible_ms=json_fields.integer(fields, "it"),
        broker_name=json_fields.text(fields, "bn", ""),
        bit_map=json_fields.integer(fields, "bm", 0),
        suspend=fields.get("sp") is True,
        re_put_times=_times(fields.get("rp")),
    )


def decode_acks(body: bytes) -> Acks:
    """Decode either form. Raises MalformedFrame."""
    fields = fastjson.loads_object(body, "a POP acknowledgement")
    offsets = _integers(fields.get("aol")) or (json_fields.integer(fields, "ao"),)
    return Acks(
        topic=json_fields.text(fields, "t"),
        group=json_fields.text(fields, "c"),
        queue_id=json_fields.integer(fields, "q"),
        start_offset=json_fields.integer(fields, "so"),
        pop_time=json_fields.integer(fields, "pt"),
        broker_name=json_fields.text(fields, "bn", ""),
        offsets=offsets,
    )


def _times(value: object) -> int:
    return int(value) if isinstance(value, int | str) and str(value).isdigit() else 0


def _integers(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, Sequence) or not all(type(item) is int for item in value):
        raise MalformedFrame(f"a list of offsets was expected, not {str(value)[:80]!r}")
    return tuple(value)
