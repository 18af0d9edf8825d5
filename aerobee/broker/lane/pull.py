"""The lane's pulls: PULL_MESSAGE 11 and LITE_PULL_MESSAGE 361 that find messages in memory. A core, see lane/core.py.

An ordinary pull comes from a group that may read the topic, asks for an offset that is
there, and finds at least one message without waiting for the disk; or it asks for the next message of a queue that has had
some, and may be suspended. Its filter may be an SQL92 expression. consumer/pull.py is the definition of what a pull does,
the lane serves the ordinary ones with the same outcome; every other one, and every refusal, is left for it.

Who may pull is asked once: `find_grant` answers with a PullGrant, which holds until something changes of topics,
groups, subscriptions or settings (`forget`). What a pull changes (offsets, statistics) is handed back as `Got`, for
the shell to note after the burst; a pull that has to wait is handed back so, too, and has no reply yet.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aerobee.broker.filter.program import Program
from aerobee.broker.pull.held_pulls import HOLD_MS_MAX
from aerobee.remoting.command import VERSION, RemotingCommand
from aerobee.remoting.frame import FRAME_BYTES_MAX, encode_frame
from aerobee.store.consume_queue import ConsumeQueue
from aerobee.store.message_store import MessageStore
from aerobee.store.stored_message import GetStatus

COMMIT_OFFSET, SUSPEND, SUBSCRIPTION = 1, 2, 4  # bits of sysFlag
COUNT_MAX = 1024  # messages of one reply whatever the client asks for; the store bounds them further
GRANTS_MAX = 4096  # beyond it all are asked again: their keys hold texts of peers
_TAG_EXPRESSIONS = ("TAG", "")
SQL_EXPRESSION = "SQL92"
SQL_MARK = "\x00"  # in front of a request's expression of SQL92 in a GrantKey
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_NUMBER_CHARS_MAX = 20
_WORDS = struct.Struct(">II")  # length of the frame behind this word, length of its JSON header

# request code, group, topic, subscription of the request (SQL92: with SQL_MARK in front) or None for the group's, its version
GrantKey = tuple[int, str, str, str | None, int]


@dataclass(frozen=True, slots=True, eq=False)
class PullGrant:
    """One way to pull that is allowed. `tag_codes` None takes every message.

    With `accept`, a test of whole records, those that it refuses are left out; `program` is the same test for the native
    lane (filter/program.py), which leaves pulls to Python that have the one and not the other.
    """

    group: str
    topic: str
    queue_count: int
    tag_codes: frozenset[int] | None
    broker_id: int  # suggested for the next pull
    slow_broker_id: int  # suggested when the data asked for is beyond the memory share
    topic_sys_flag: int
    group_sys_flag: int
    accept: Callable[[bytes], bool] | None = None
    program: Program | None = None


Waits = tuple[bytes, int]  # the pull's frame, for how many ms it may be held
# grant, queue id, next offset, offset to commit or None, messages, their bytes, and None unless it waits for a message
Got = tuple[PullGrant, int, int, int | None, int, int, Waits | None]


def number(value: object) -> int:
    """Read a header's number: a JSON integer, or text of at most 20 characters. Raises ValueError beyond 64 bits."""
    if type(value) is str:
        if (
            len(value) < 19 and value.isdigit() and value.isascii()
        ):  # nearly all: in range without a look at it
            return int(value)
        if not (len(value) <= _NUMBER_CHARS_MAX and value.isascii() and value.removeprefix("-").isdigit()):
            raise ValueError
        value = int(value)
    if type(value) is not int or not _INT64_MIN <= value <= _INT64_MAX:
        raise ValueError
    return value


class LanePulls:
    """Serves ordinary pulls from the store."""

    def __init__(
        self, store: MessageStore, find_grant: Callable[[GrantKey], PullGrant | None], parks: bool
    ) -> None:
        """`parks`: a pull that finds nothing may wait as long as it says."""
        self._store = store
        self._parks = parks
        self._find_grant = find_grant
        self._grants: dict[GrantKey, PullGrant] = {}

    def forget(self) -> None:
        """Who may pull has changed: ask again."""
        self._grants.clear()

    def serve(
        self,
        code: int,
        ext: dict[str, Any],
        opaque: int,
        request: RemotingCommand | None,
        frame: bytes | bytearray,
    ) -> tuple[bytes, Got]:
        """Return the encoded reply, b"" when it waits, and what is to be noted.

        `request` is given when its header was binary; `frame` is the whole one.
        Raises KeyError, ValueError, TypeError or StoreError for a pull that is not ordinary; nothing has changed then.
        """
        flags = number(ext["sysFlag"])
        grant = self._grant(code, ext, flags)
        queue_id, offset = number(ext["queueId"]), number(ext["queueOffset"])
        count_max = min(max(1, number(ext["maxMsgNums"])), COUNT_MAX)
        commit = number(ext["commitOffset"]) if flags & COMMIT_OFFSET else None
        store = self._store
        queue = store.queues.get((grant.topic, queue_id))
        if not 0 <= queue_id < grant.queue_count or type(queue) is not ConsumeQueue:
            raise ValueError
        low, high = queue.min_offset, queue.readable_max
        # One whose expression has no program is for the handler here, because it is so in the native twin.
        may_wait = self._parks and flags & SUSPEND and (grant.accept is None or grant.program is not None)
        if may_wait and offset == high > 0:
            hold_ms = min(max(0, number(ext.get("suspendTimeoutMillis", 0))), HOLD_MS_MAX)
            return b"", (grant, queue_id, offset, commit, 0, 0, (bytes(frame), hold_ms))
        if not low <= offset < high or store.warmer.is_cold(queue, offset):
            raise ValueError
        takes_all = grant.tag_codes is None and grant.accept is None
        run = store.reader.young_run(queue, offset, count_max) if takes_all else None
        if run is not None:
            body, count = run
            next_offset, suggested = offset + count, grant.broker_id
        else:
            result = store.reader.look(queue, offset, count_max, grant.tag_codes, grant.accept)
            if result.status is not GetStatus.FOUND:
                raise ValueError
            body, count, next_offset = result.body, result.count, result.next_offset
            suggested = grant.slow_broker_id if result.suggest_slave else grant.broker_id
        got = (grant, queue_id, next_offset, commit, count, len(body), None)
        if request is not None:
            ext = {
                "suggestWhichBrokerId": str(suggested),
                "nextBeginOffset": str(next_offset),
                "minOffset": str(low),
                "maxOffset": str(high),
                "topicSysFlag": str(grant.topic_sys_flag),
                "groupSysFlag": str(grant.group_sys_flag),
            }
            return encode_frame(request.reply(remark="FOUND", ext=ext, body=body)), got
        header = (
            f'{{"code":0,"extFields":{{"suggestWhichBrokerId":"{suggested}","nextBeginOffset":"{next_offset}",'
            f'"minOffset":"{low}","maxOffset":"{high}","topicSysFlag":"{grant.topic_sys_flag}","groupSysFlag":'
            f'"{grant.group_sys_flag}"}},"flag":1,"language":"PYTHON","opaque":{opaque},"remark":"FOUND",'
            f'"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
        ).encode()
        length = 4 + len(header) + len(body)
        if length + 4 > FRAME_BYTES_MAX:
            raise ValueError
        return b"".join((_WORDS.pack(length, len(header)), header, body)), got

    def _grant(self, code: int, ext: dict[str, Any], flags: int) -> PullGrant:
        """Who pulls what; found by everything that the answer depends on."""
        expression_type = ext.get("expressionType", "TAG")
        is_sql = expression_type == SQL_EXPRESSION
        if not is_sql and expression_type not in _TAG_EXPRESSIONS:
            raise ValueError
        if flags & SUBSCRIPTION:
            subscription = ext.get("subscription", "")
            if type(subscription) is not str or subscription.startswith(SQL_MARK):
                raise ValueError
            if is_sql:
                subscription = SQL_MARK + subscription
            key: GrantKey = (code, ext["consumerGroup"], ext["topic"], subscription, 0)
        else:
            sub_version = number(ext.get("subVersion", 0))
            key = (code, ext["consumerGroup"], ext["topic"], None, sub_version)
        return self._grants.get(key) or self._admit(key)

    def _admit(self, key: GrantKey) -> PullGrant:
        _, group, topic, _, _ = key
        if not type(group) is type(topic) is str:
            raise ValueError
        grant = self._find_grant(key)
        if grant is None:
            raise KeyError(topic)
        if len(self._grants) >= GRANTS_MAX:
            self._grants.clear()
        self._grants[key] = grant
        return grant
