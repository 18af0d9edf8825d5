"""Pulls: PULL_MESSAGE 11 and LITE_PULL_MESSAGE 361 that find messages in memory. A core.

An ordinary pull comes from a group that may read the topic, requests an existing offset, and finds at least one message
without waiting for the disk; or it requests the next message of a queue that had messages, and may be suspended. Its
filter may be an SQL92 expression. pull/pull_service.py is the reference implementation of what a pull does, the fast
path serves the ordinary ones with the same outcome; every other one, and every refusal, is left for it.

The permission to pull is looked up once: `find_authorization` returns an Authorization, which is valid until topics,
groups, subscriptions or settings change. The effects of a pull (offsets, statistics) are returned as a PullResult,
which the I/O layer records after the burst; a pull that must wait is returned in the same way, without a reply.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aerobee.broker.fastpath.frame_handlers import Serve
from aerobee.broker.fastpath.request import UNREADABLE, FallBackToHandler, Request, number
from aerobee.broker.fastpath.results import PullResult
from aerobee.broker.fastpath.seam import Authorization, AuthorizationKey, BackendSettings, PendingFrame
from aerobee.broker.fastpath.shared import Shared
from aerobee.remoting.body.subscription import TYPE_SQL92
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import VERSION
from aerobee.remoting.frame import FRAME_BYTES_MAX, PREFIX, encode_frame
from aerobee.remoting.protocol import (
    HOLD_MS_MAX,
    PULL_COMMIT_OFFSET,
    PULL_COUNT_MAX,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
)
from aerobee.store.log.stored_message import GetStatus
from aerobee.store.queue.consume_queue import ConsumeQueue

# Maximum number of cached authorizations, whose keys contain texts of peers; at the limit all are dropped.
AUTHORIZATIONS_MAX = 4096
SQL_PREFIX = "\x00"  # in front of a request's expression of SQL92 in an AuthorizationKey
_TAG_EXPRESSIONS = ("TAG", "")


class Pulls:
    """The frame handler of pulls."""

    is_send = False

    def __init__(self, shared: Shared, settings: BackendSettings) -> None:
        self._shared = shared
        self._store = settings.store
        self._supports_long_poll = settings.supports_long_poll
        self._find_authorization = settings.find_authorization
        self._authorizations: dict[AuthorizationKey, Authorization] = {}

    def forget_topics(self) -> None:
        """As forget_authorizations."""
        self._authorizations.clear()

    def forget_authorizations(self) -> None:
        """Permissions to pull have changed: drop the cached authorizations."""
        self._authorizations.clear()

    @property
    def serves(self) -> Mapping[int, Serve]:
        """As FrameHandler.serves."""
        return dict.fromkeys(
            (RequestCode.PULL_MESSAGE.value, RequestCode.LITE_PULL_MESSAGE.value), self.serve
        )

    def serve(self, request: Request) -> None:
        """As Serve."""
        if request.flag:
            raise FallBackToHandler
        try:
            reply, result = self._pull(request)
        except UNREADABLE as error:
            raise FallBackToHandler from error
        shared = self._shared
        shared.pulled.append(result)
        if not reply:
            return
        if replies := shared.replies:
            shared.parts.append("".join(replies).encode("latin-1"))
            replies.clear()
        shared.parts.append(reply)
        shared.pulled_bytes += len(reply)

    def _pull(self, request: Request) -> tuple[bytes, PullResult]:
        """Return the encoded reply, b"" when it waits, and the effects to record.

        Raises one of UNREADABLE for a pull that is not ordinary; nothing has changed then.
        """
        ext = request.ext
        flags = number(ext["sysFlag"])
        authorization = self._authorization(request.code, ext, flags)
        queue_id, offset = number(ext["queueId"]), number(ext["queueOffset"])
        count_max = min(max(1, number(ext["maxMsgNums"])), PULL_COUNT_MAX)
        commit = number(ext["commitOffset"]) if flags & PULL_COMMIT_OFFSET else None
        store = self._store
        queue = store.queues.get((authorization.topic, queue_id))
        if not 0 <= queue_id < authorization.queue_count or type(queue) is not ConsumeQueue:
            raise ValueError
        low, high = queue.min_offset, queue.readable_max
        # The handler serves pulls whose expression has no program, because the native backend cannot evaluate
        # it.
        has_filter = authorization.accept is None or authorization.program is not None
        if self._supports_long_poll and flags & PULL_SUSPEND and has_filter and offset == high > 0:
            hold_ms = min(max(0, number(ext.get("suspendTimeoutMillis", 0))), HOLD_MS_MAX)
            held = (request.frame, hold_ms, request.code)
            return b"", _result(authorization, queue_id, offset, commit, held)
        if not low <= offset < high or store.warmer.is_cold(queue, offset, count_max):
            raise ValueError
        takes_all = authorization.tag_codes is None and authorization.accept is None
        run = store.reader.hot_run(queue, offset, count_max) if takes_all else None
        if run is not None:
            body, count = run
            next_offset, suggested = offset + count, authorization.broker_id
        else:
            read = store.reader.look(queue, offset, count_max, authorization.tag_codes, authorization.accept)
            if read.status is not GetStatus.FOUND:
                raise ValueError
            body, count, next_offset = read.body, read.count, read.next_offset
            suggested = authorization.slow_broker_id if read.suggest_slave else authorization.broker_id
        reply = _reply(request, authorization, suggested, next_offset, low, high, body)
        try:
            totals = self._shared.handed_out[authorization]
        except KeyError:
            totals = self._shared.handed_out[authorization] = [0, 0, 0]
        totals[0] += count
        totals[1] += len(body)
        totals[2] += 1
        return reply, _result(authorization, queue_id, next_offset, commit, None)

    def _authorization(self, code: int, ext: dict[str, Any], flags: int) -> Authorization:
        """The key of an authorization: all values that it depends on."""
        expression_type = ext.get("expressionType", "TAG")
        is_sql = expression_type == TYPE_SQL92
        if not is_sql and expression_type not in _TAG_EXPRESSIONS:
            raise ValueError
        if flags & PULL_SUBSCRIPTION:
            subscription = ext.get("subscription", "")
            if type(subscription) is not str or subscription.startswith(SQL_PREFIX):
                raise ValueError
            if is_sql:
                subscription = SQL_PREFIX + subscription
            key: AuthorizationKey = (code, ext["consumerGroup"], ext["topic"], subscription, 0)
        else:
            sub_version = number(ext.get("subVersion", 0))
            key = (code, ext["consumerGroup"], ext["topic"], None, sub_version)
        return self._authorizations.get(key) or self._admit(key)

    def _admit(self, key: AuthorizationKey) -> Authorization:
        _, group, topic, _, _ = key
        if not type(group) is type(topic) is str:
            raise ValueError
        authorization = self._find_authorization(key)
        if authorization is None:
            raise KeyError(topic)
        if len(self._authorizations) >= AUTHORIZATIONS_MAX:
            self._authorizations.clear()
        self._authorizations[key] = authorization
        return authorization


def _result(
    authorization: Authorization,
    queue_id: int,
    next_offset: int,
    commit_offset: int | None,
    held: PendingFrame | None,
) -> PullResult:
    result = PullResult()
    result.authorization = authorization
    result.queue_id = queue_id
    result.next_offset = next_offset
    result.commit_offset = commit_offset
    result.held = held
    return result


def _reply(
    request: Request,
    authorization: Authorization,
    suggested: int,
    next_offset: int,
    low: int,
    high: int,
    body: bytes,
) -> bytes:
    """The encoded reply. Raises ValueError for one that exceeds a frame."""
    if request.command is not None:
        ext = {
            "suggestWhichBrokerId": str(suggested),
            "nextBeginOffset": str(next_offset),
            "minOffset": str(low),
            "maxOffset": str(high),
            "topicSysFlag": str(authorization.topic_sys_flag),
            "groupSysFlag": str(authorization.group_sys_flag),
        }
        return encode_frame(request.command.reply(remark="FOUND", ext=ext, body=body))
    header = (
        f'{{"code":0,"extFields":{{"suggestWhichBrokerId":"{suggested}","nextBeginOffset":"{next_offset}",'
        f'"minOffset":"{low}","maxOffset":"{high}","topicSysFlag":"{authorization.topic_sys_flag}","groupSysFlag":'
        f'"{authorization.group_sys_flag}"}},"flag":1,"language":"PYTHON","opaque":{request.opaque},"remark":"FOUND",'
        f'"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
    ).encode()
    length = 4 + len(header) + len(body)
    if length + 4 > FRAME_BYTES_MAX:
        raise ValueError
    return b"".join((PREFIX.pack(length, len(header)), header, body))
