"""Admin calls about POP: whether a group pulls or pops a topic (SET_MESSAGE_REQUEST_MODE 401,
GET_ALL_MESSAGE_REQUEST_MODE 402, as mqadmin's setConsumeMode). Invisible messages are in admin/explain.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from aerobee.client.admin.base import AdminCalls
from aerobee.errors import UsageError
from aerobee.message import RETRY_PREFIX, check_group_name
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.codes import RequestCode

MODES = ("PULL", "POP")
SHARE_ALL = -1


@dataclass(slots=True, frozen=True, kw_only=True)
class RequestModeInfo:
    """How push consumers of a group that let the broker assign queues consume a topic.

    `mode` is "PULL" or "POP". With POP, a member pops its own share of the queues and those of `share_queue_num` others;
    0 and below: all queues.
    """

    topic: str
    group: str
    broker_address: str
    mode: str
    share_queue_num: int


class PopModeCalls(AdminCalls):
    """Read and change request modes."""

    async def request_modes(self, group: str | None = None) -> tuple[RequestModeInfo, ...]:
        """The explicit modes, of one group or all, at every master; other topics use the brokers' default (PULL)."""
        found: list[RequestModeInfo] = []
        for address in await self._masters(None, None):
            answer = await self._call(address, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
            tree = fastjson.loads_trusted(answer.body, "MessageRequestModeSerializeWrapper")
            for topic, groups in json_fields.mapping(tree, "messageRequestModeMap").items():
                for name, value in json_fields.as_object(groups, f"the modes of {topic[:80]!r}").items():
                    fields = json_fields.as_object(value, f"the mode of {name[:80]!r}")
                    if group in (None, name):
                        found.append(
                            RequestModeInfo(
                                topic=topic,
                                group=name,
                                broker_address=address,
                                mode=json_fields.enum_name(fields, "mode", MODES, MODES[0]),
                                share_queue_num=json_fields.integer(fields, "popShareQueueNum", SHARE_ALL),
                            )
                        )
        return tuple(sorted(found, key=lambda item: (item.group, item.topic, item.broker_address)))

    async def set_request_mode(
        self, group: str, topic: str, mode: str, *, share_queue_num: int = SHARE_ALL
    ) -> tuple[str, ...]:
        """Set "PULL" or "POP" at every master, durable on return. Returns the masters' addresses.

        Running members apply the mode at their next rebalance, within 20 s.
        """
        check_group_name(group)
        if mode not in MODES:
            raise UsageError(f"mode {mode!r} is not known: {' or '.join(MODES)}")
        if topic.startswith(RETRY_PREFIX):
            raise UsageError(f"{topic} is a retry topic, which is always pulled: name the topic itself")
        body = fastjson.dumps(
            {"consumerGroup": group, "mode": mode, "popShareQueueNum": share_queue_num, "topic": topic}
        )
        masters = await self._masters(None, None)
        await self._all(
            self._call(address, RequestCode.SET_MESSAGE_REQUEST_MODE, None, body) for address in masters
        )
        return tuple(masters)
