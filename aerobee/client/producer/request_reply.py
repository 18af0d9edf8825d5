"""Request-reply over topics: pending requests, and the message that replies to a request.

Follows RequestFutureHolder, RequestResponseFuture and MessageUtil.createReplyMessage (RocketMQ). A request is an
ordinary message with CORRELATION_ID, REPLY_TO_CLIENT (the requester's client id) and TTL (ms). A reply goes to
`<cluster>_REPLY_TOPIC` at a broker, which calls the requester (326) over the connection of its heartbeats. That works
only at a broker that knows the requester. So this client sends a heartbeat to every broker of the reply topic before
its first request, and sends a reply first to the broker from which the request came.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import uuid
from collections.abc import Mapping, Sequence
from random import Random

from aerobee.client.base.received import ReceivedMessage
from aerobee.clock import Clock
from aerobee.errors import MalformedFrame, NoReply, RemoteError, SendFailed, UsageError
from aerobee.host_port import bare_host
from aerobee.message import MAGIC_V1, Message, MessageQueue, decode_properties, encode_properties
from aerobee.property_names import CORRELATION_ID, REPLY_TO_CLIENT
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Peer

log = logging.getLogger(__name__)

TTL = "TTL"
MESSAGE_TYPE = "MSG_TYPE"
CLUSTER = "CLUSTER"
REPLY = "reply"


def reply_topic(cluster: str) -> str:
    """The topic of the replies of a cluster."""
    return f"{cluster}_REPLY_TOPIC"


def request_properties(correlation_id: str, client_id: str, timeout_s: float) -> dict[str, str]:
    """The properties that make a message a request."""
    return {
        CORRELATION_ID: correlation_id,
        REPLY_TO_CLIENT: client_id,
        TTL: str(max(1, round(timeout_s * 1000))),
    }


def is_request(message: ReceivedMessage) -> bool:
    """True when the sender of a message expects a reply."""
    return REPLY_TO_CLIENT in message.properties


def reply_message(
    request: ReceivedMessage,
    body: bytes,
    tag: str | None = None,
    user_properties: Mapping[str, str] | None = None,
) -> Message:
    """The message that replies to `request`. Raises UsageError when no client waits for a reply."""
    properties = request.properties
    missing = [name for name in (CLUSTER, REPLY_TO_CLIENT, CORRELATION_ID, TTL) if name not in properties]
    if missing:
        raise UsageError(
            f"{request} lacks {', '.join(missing)}: it was not sent with request(), so no client waits for a reply"
        )
    return Message(
        reply_topic(properties[CLUSTER]),
        body,
        tag=tag,
        properties={
            **(user_properties or {}),
            MESSAGE_TYPE: REPLY,
            CORRELATION_ID: properties[CORRELATION_ID],
            REPLY_TO_CLIENT: properties[REPLY_TO_CLIENT],
            TTL: properties[TTL],
        },
    )


def not_handed_over(request: ReceivedMessage, attempts: Sequence[tuple[str, BaseException]]) -> SendFailed:
    """The error of a reply that no broker could deliver to the requester."""
    tries = "; ".join(
        f"{where}: {error.remark if isinstance(error, RemoteError) else error}" for where, error in attempts
    )
    client_id = request.properties.get(REPLY_TO_CLIENT, "")
    return SendFailed(
        f"the reply to request {request.message_id} did not reach client {client_id} ({tries}): "
        "the client disconnected, or its request timed out",
        tuple(attempts),
    )


def decode_reply(request: RemotingCommand) -> ReceivedMessage:
    """The reply that a broker pushes (326). Its offsets are unknown and 0. Raises MalformedFrame."""
    properties = decode_properties(request.text("properties", ""))
    born_ip, born_port = _host(request.text("bornHost"))
    store_ip, store_port = _host(request.text("storeHost"))
    queue_id = request.integer("queueId")
    topic = request.text("topic")
    head = (
        len(request.body),
        MAGIC_V1,
        0,
        queue_id,
        request.integer("flag"),
        0,
        0,
        request.integer("sysFlag"),
        request.integer("bornTimestamp"),
        born_ip,
        born_port,
        request.integer("storeTimestamp"),
        store_ip,
        store_port,
        request.integer("reconsumeTimes", 0),
        0,
        len(request.body),
    )
    text = encode_properties(properties).encode(errors="surrogateescape")
    queue = MessageQueue(topic, "", queue_id)
    return ReceivedMessage(topic, queue, 0, request.body, text, head, len(request.body), head[7])


def _host(text: str) -> tuple[bytes, int]:
    """ "ip:port" as packed address and port; Java writes a slash before an address without a name."""
    ip, _, port = text.removeprefix("/").rpartition(":")
    try:
        return ipaddress.ip_address(bare_host(ip)).packed, int(port)
    except ValueError as error:
        raise MalformedFrame(f"a pushed reply names host {text!r}, which is not ip:port") from error


class PendingRequests:
    """Pending requests of one client, by correlation id.

    At most `count_max` are pending; a further request waits for a slot within its deadline.
    """

    def __init__(self, *, clock: Clock, random: Random, count_max: int) -> None:
        self._clock = clock
        self._random = random
        self._slots = asyncio.Semaphore(count_max)
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}
        self.unmatched_count = 0  # number of replies that arrived too late, or without a request

    def __len__(self) -> int:
        return len(self._waiting)

    async def open(self) -> tuple[str, asyncio.Future[ReceivedMessage]]:
        """A new correlation id and the future of its reply. Every open() is followed by one close()."""
        await self._slots.acquire()
        correlation_id = str(uuid.UUID(int=self._random.getrandbits(128), version=4))
        future = self._waiting[correlation_id] = asyncio.get_running_loop().create_future()
        return correlation_id, future

    def close(self, correlation_id: str) -> None:
        """Remove the request: its reply is no longer expected."""
        self._waiting.pop(correlation_id).cancel()
        self._slots.release()

    def arrived(self, _peer: Peer, request: RemotingCommand) -> RemotingCommand | None:
        """326: a broker delivers a reply. A late one is dropped, with code 0 as in RocketMQ."""
        message = decode_reply(request)
        future = self._waiting.get(message.properties.get(CORRELATION_ID, ""))
        if future is None or future.done():
            self.unmatched_count += 1
            log.info("late reply dropped: %s", message)
        else:
            future.set_result(message)
        return None if request.is_oneway else request.reply()

    def timed_out(self, message_id: str, topic: str, timeout_s: float) -> NoReply:
        """The error of a request that was stored but got no reply."""
        return NoReply(
            f"no reply to request {message_id} of topic {topic} came within {timeout_s:.1f} s: "
            "the request is stored, but no consumer replied, or the reply was late",
            request="request",
            elapsed_s=timeout_s,
        )
