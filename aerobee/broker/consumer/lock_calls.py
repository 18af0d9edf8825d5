"""LOCK_BATCH_MQ 41 and UNLOCK_BATCH_MQ 42: a consumer locks and unlocks queues. AEROBEE_LIST_LOCKS: the holders of locks.

Source: LockBatchRequestBody, LockBatchResponseBody, AdminBrokerProcessor (RocketMQ). Broker names in the queues are
whatever the client sent and come back as sent. `onlyThisBroker` stops RocketMQ's forwarding between replicas, which
needs lockInStrictMode; there is none here. `leaseMillis` in a lock request is Aerobee-specific, see lock_table.py.

Invariant: a grant is sent only after the file contains the holder, so a broker that was killed and restarted does not
grant the queue to another client while its holder still consumes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NamedTuple

from aerobee.broker.consumer.lock_table import LockTable
from aerobee.broker.state.config_file import ConfigFile
from aerobee.broker.state.feature import Feature
from aerobee.broker.state.role import RoleState
from aerobee.errors import MalformedFrame, StoreError
from aerobee.message import GROUP_CHARS_MAX, MessageQueue
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.message_queue import queue_to_dict, queues
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer, Reply
from aerobee.remoting.wire_name import check_wire_name
from aerobee.shared_task import SharedTask

log = logging.getLogger(__name__)

FILE_NAME = "orderlyLocks.json"
QUEUES_PER_REQUEST_MAX = 4_096
NAME_CHARS_MAX = 1_024
KNOWN_MAX, KNOWN_BODY_BYTES_MAX = 256, 4_096  # requests whose parsed form is kept: 1 MiB of bodies


class _LockRequest(NamedTuple):
    """A parsed lock request. `granted` is the reply's body when it is granted whole."""

    group: str
    client_id: str
    queues: tuple[MessageQueue, ...]
    lease_s: float
    granted: bytes


class OrderlyLocks(Feature):
    """Answers 41, 42 and AEROBEE_LIST_LOCKS, and keeps the file."""

    name = "orderly locks"

    def __init__(self, *, locks: LockTable, file: ConfigFile, role: RoleState) -> None:
        self._calls = LockCalls(locks=locks, file=file, serves=lambda: role.serves_group)

    def handlers(self) -> dict[int, Handler]:
        return self._calls.handlers()

    def load(self) -> None:
        self._calls.load()

    def save(self) -> None:
        self._calls.save()


class LockCalls:
    """Handlers of the lock requests. A grant that changes a holder is answered after the file is written; a renewal
    immediately.
    """

    def __init__(
        self, *, locks: LockTable, file: ConfigFile | None = None, serves: Callable[[], bool] = lambda: True
    ) -> None:
        """`serves`: whether this broker grants locks; otherwise it grants none."""
        self._locks = locks
        self._serves = serves
        self._file = file
        self._saved_version = locks.version
        self._saving: SharedTask[None] | None = None
        # By body: a client renews its locks every few seconds with the request that took them.
        self._known: dict[bytes, _LockRequest] = {}

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
            RequestCode.AEROBEE_LIST_LOCKS: self.show,
        }

    def lock(self, peer: Peer, request: RemotingCommand) -> Reply | Coroutine[Any, Any, Reply]:
        """Body {consumerGroup, clientId, mqSet}; the reply's lockOKMQSet names the queues that were granted."""
        asked = self._known.get(request.body) or self._read(request.body)
        if not self._serves():
            # Another broker grants locks meanwhile: a client with an old route gets no lock here and will
            # request it there.
            return request.reply(body=fastjson.dumps({"lockOKMQSet": []}))
        granted = self._locks.lock(asked.group, asked.client_id, asked.queues, lease_s=asked.lease_s)
        reply = request.reply(body=asked.granted if len(granted) == len(asked.queues) else _granted(granted))
        return reply if self._is_saved else self._reply_when_saved(reply)

    def _read(self, body: bytes) -> _LockRequest:
        """Parse a lock request, and remember it. Raises MalformedFrame."""
        fields = fastjson.loads_object(body, "a lock request", fastjson.REQUEST_DIALECT_BYTES_MAX)
        group, client_id, wanted = _parse(fields, "a lock request")
        lease_s = max(0, json_fields.integer(fields, "leaseMillis")) / 1000
        asked = _LockRequest(group, client_id, wanted, lease_s, _granted(wanted))
        if len(body) <= KNOWN_BODY_BYTES_MAX:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[body] = asked
        return asked

    def unlock(self, peer: Peer, request: RemotingCommand) -> Reply:
        """The same body. The file is written later: until then a restart would keep the lock for its lease."""
        fields = fastjson.loads_object(request.body, "an unlock request", fastjson.REQUEST_DIALECT_BYTES_MAX)
        self._locks.unlock(*_parse(fields, "an unlock request"))
        if not self._is_saved:
            self._begin_saving()
        return None if request.is_oneway else request.reply()

    def show(self, peer: Peer, request: RemotingCommand) -> Reply:
        """Body: {"locks": [{consumerGroup, topic, brokerName, queueId, clientId, since, ageMillis, leaseMillis}]}."""
        locks = [
            queue_to_dict(info.queue)
            | {
                "consumerGroup": info.group,
                "clientId": info.client_id,
                "since": info.since_ms,
                "ageMillis": info.age_ms,
                "leaseMillis": info.lease_ms,
            }
            for info in self._locks.infos(request.field("consumerGroup") or "")
        ]
        return request.reply(body=fastjson.dumps({"locks": locks}))

    # --- the file

    def load(self) -> None:
        """Load the locks of the previous run. Raises StoreError for a file that is no lock table."""
        tree = None if self._file is None else self._file.read()
        if tree is None:
            return
        try:
            self._locks.from_json(tree)
        except MalformedFrame as error:
            raise StoreError(f"config/{FILE_NAME} is not a lock table: {error}") from error
        self._saved_version = self._locks.version

    def save(self) -> None:
        """Write the file, blocking."""
        if self._file is not None and not self._is_saved:
            self._file.write(self._locks.to_json())
            self._saved_version = self._locks.version

    @property
    def _is_saved(self) -> bool:
        return self._saved_version == self._locks.version or self._file is None

    async def _reply_when_saved(self, reply: RemotingCommand) -> RemotingCommand:
        version = self._locks.version
        while self._saved_version < version:
            # One write at a time; the next write contains all pending changes.
            await self._begin_saving().outcome()
        return reply

    def _begin_saving(self) -> SharedTask[None]:
        if self._saving is None or self._saving.task.done():
            self._saving = SharedTask(asyncio.create_task(self._write_async(), name="write-orderly-locks"))
        return self._saving

    async def _write_async(self) -> None:
        file, make_tree, version = self._file, self._locks.prepare_json(), self._locks.version
        assert file is not None
        try:
            await file.run(lambda: file.write(make_tree()))
        except StoreError as error:
            # The locks are then only in memory, like RocketMQ's.
            log.error("locks of ordered queues are not written and would not survive a restart: %s", error)
        self._saved_version = version


def _granted(queues_granted: Iterable[MessageQueue]) -> bytes:
    """The body of the reply that grants these queues."""
    return fastjson.dumps({"lockOKMQSet": [queue_to_dict(queue) for queue in queues_granted]})


def _parse(fields: json_fields.Fields, what: str) -> tuple[str, str, tuple[MessageQueue, ...]]:
    group = json_fields.text(fields, "consumerGroup")
    client_id = json_fields.text(fields, "clientId")
    if not group or not client_id:
        raise MalformedFrame(f"{what} needs consumerGroup and clientId, it has {group!r} and {client_id!r}")
    if len(group) > GROUP_CHARS_MAX or len(client_id) > NAME_CHARS_MAX:
        raise MalformedFrame(
            f"{what} has a group of {len(group)} and a clientId of {len(client_id)} characters"
        )
    check_wire_name(client_id, f"clientId of {what}", NAME_CHARS_MAX)
    count = len(json_fields.items(fields, "mqSet"))
    if count > QUEUES_PER_REQUEST_MAX:
        raise MalformedFrame(f"{what} names {count} queues, at most {QUEUES_PER_REQUEST_MAX} are possible")
    wanted = queues(fields, "mqSet")
    if any(len(queue.topic) > NAME_CHARS_MAX or len(queue.broker_name) > NAME_CHARS_MAX for queue in wanted):
        raise MalformedFrame(f"{what} has names of more than {NAME_CHARS_MAX} characters")
    return group, client_id, wanted
