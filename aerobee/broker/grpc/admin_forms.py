"""How the RPCs of the Admin service show what remoting's administration answers, at a broker and at a proxy. Core."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from aerobee.broker.grpc.message_form import delivered_message
from aerobee.broker.grpc.names import topic_name
from aerobee.broker.grpc.refusal import RpcRefused, status
from aerobee.broker.grpc.times import set_ms, timestamp_ms
from aerobee.broker.send.message_type import NORMAL
from aerobee.grpc.proto import messages as pb
from aerobee.host_port import split_address
from aerobee.message import Record, decode_record
from aerobee.property_names import UNIQUE_KEY
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.connection_info import ConnectionInfo
from aerobee.remoting.body.consumer_connection import ConsumerConnection
from aerobee.remoting.body.consumer_running_info import ConsumerRunningInfo
from aerobee.remoting.body.message_queue import queue_from_dict
from aerobee.remoting.body.subscription import TYPE_SQL92, SubscriptionData
from aerobee.remoting.protocol import OFFSET_MAX

TOPICS_NAMED_MAX = 1_000  # of one request
MESSAGES_MAX = 64  # of one response
BATCH_COUNT = 32
MODELS = {"CLUSTERING": pb.CLUSTERING, "BROADCASTING": pb.BROADCASTING}
TYPES = {
    NORMAL: pb.NORMAL,
    "FIFO": pb.FIFO,
    "DELAY": pb.DELAY,
    "TRANSACTION": pb.TRANSACTION,
    "LITE": pb.LITE,
    "PRIORITY": pb.PRIORITY,
}

# --- groups


def named_topics(resources: Iterable[pb.Resource]) -> list[str]:
    """Raises RpcRefused."""
    found = [topic_name(each) for each in resources]
    if len(found) > TOPICS_NAMED_MAX:
        raise RpcRefused(
            pb.BAD_REQUEST, f"the request names {len(found)} topics, at most {TOPICS_NAMED_MAX} are allowed"
        )
    return found


def sum_lags(lags: Iterable[pb.GroupAccumulation]) -> pb.GroupAccumulation:
    """The messages of all, the longest delay, and the newest consumption."""
    whole = pb.GroupAccumulation()
    late = (0, 0)
    for each in lags:
        whole.inflight_messages += each.inflight_messages
        whole.ready_messages += each.ready_messages
        whole.accumulation += each.accumulation
        whole.last_consume_timestamp = max(whole.last_consume_timestamp, each.last_consume_timestamp)
        late = max(late, (each.deliver_delay_time.seconds, each.deliver_delay_time.nanos))
    whole.deliver_delay_time.seconds, whole.deliver_delay_time.nanos = late
    return whole


def client_info(info: ConnectionInfo, model: pb.MessageModel) -> pb.ClientInfo:
    """A client as a broker lists it."""
    address = info.client_addr.removeprefix("/")
    try:
        host = split_address(address)[0]
    except ValueError:
        host = address
    return pb.ClientInfo(
        client_id=info.client_id,
        version=str(info.version),
        language=str(info.language),
        hostname=info.client_id.partition("@")[0],
        egress_ip=host,
        message_model=model,
    )


def subscription_info(
    group: str, topic: str, connection: ConsumerConnection | None, model: pb.MessageModel
) -> pb.SubscriptionInfo:
    """What a group subscribes of a topic. `connection`: its members, None for a group that is not connected."""
    data = None if connection is None else connection.subscription_table.get(topic)
    shown = pb.SubscriptionInfo(
        group=pb.Resource(name=group),
        topic=pb.Resource(name=topic),
        online=connection is not None,
        message_model=pb.MESSAGE_MODEL_UNSPECIFIED if connection is None else model,
        subscription_consistency=connection is None
        or not any(each["topic"] == topic for each in connection.subscription_conflicts),
    )
    if data is not None:
        shown.expression.CopyFrom(filter_expression(spelled(data)))
        set_ms(shown.last_update_timestamp, max(0, data.sub_version))
    return shown


def spelled(data: SubscriptionData) -> str:
    """The expression of a subscription as subscription_conflict.Wanted has it."""
    return f"{data.expression_type} {data.sub_string}" if not data.is_tag_filter else data.sub_string


def filter_expression(text: str) -> pb.FilterExpression:
    """An expression as subscription_conflict.Wanted has it: that of another type has its name in front."""
    prefix = f"{TYPE_SQL92} "
    if text.startswith(prefix):
        return pb.FilterExpression(type=pb.SQL, expression=text.removeprefix(prefix))
    return pb.FilterExpression(type=pb.TAG, expression=text)


def time_spans(body: bytes, broker_id: int) -> list[pb.QueueTimeSpan]:
    """The answer to QUERY_CONSUME_TIME_SPAN. Raises MalformedFrame."""
    rows = json_fields.objects(fastjson.loads_object(body, "time spans"), "consumeTimeSpanSet")
    found = []
    for row in rows:
        queue = queue_from_dict(json_fields.mapping(row, "messageQueue"))
        shown = pb.MessageQueue(
            topic=pb.Resource(name=queue.topic),
            id=queue.queue_id,
            broker=pb.Broker(name=queue.broker_name, id=broker_id),
        )
        found.append(
            pb.QueueTimeSpan(
                message_queue=shown,
                min_timestamp=json_fields.integer(row, "minTimeStamp"),
                max_timestamp=json_fields.integer(row, "maxTimeStamp"),
                consume_timestamp=json_fields.integer(row, "consumeTimeStamp"),
                delay_time_ms=json_fields.integer(row, "delayTime"),
            )
        )
    return found


def consumer_running_info(info: ConsumerRunningInfo) -> pb.ConsumerRunningInfo:
    """What a consumer reports of itself."""
    shown = pb.ConsumerRunningInfo(properties=info.properties)
    for item in info.subscription_set:
        expression = shown.subscriptions[item.topic]
        expression.type = pb.SQL if item.expression_type == TYPE_SQL92 else pb.TAG
        expression.expression = item.sub_string
    for queue, queued in info.mq_table.items():
        shown.message_queues.add(
            message_queue=pb.MessageQueue(
                topic=pb.Resource(name=queue.topic),
                id=queue.queue_id,
                broker=pb.Broker(name=queue.broker_name),
            ),
            process_queue_info=pb.ProcessQueueInfo(
                **{name: getattr(queued, name) for name in queued.__dataclass_fields__}
            ),
        )
    for topic, rates in info.status_table.items():
        shown.consume_statuses[topic].CopyFrom(
            pb.ConsumeStatus(
                receive_rt=rates.pull_rt,
                receive_tps=rates.pull_tps,
                consume_rt=rates.consume_rt,
                consume_ok_tps=rates.consume_ok_tps,
                consume_failed_tps=rates.consume_failed_tps,
                consume_failed_msgs=rates.consume_failed_msgs,
            )
        )
    return shown


# --- messages


def time_range(request: pb.ListMessageRequest) -> tuple[int, int]:
    """First and last store time that a query wants, in ms."""
    begin_ms, end_ms = 0, OFFSET_MAX
    if request.HasField("begin_timestamp"):
        begin_ms = max(0, timestamp_ms(request.begin_timestamp))
    if request.HasField("end_timestamp"):
        end_ms = max(0, timestamp_ms(request.end_timestamp))
    return begin_ms, end_ms


def count_of(request: pb.ListMessageRequest) -> int:
    """The number of messages that a query wants."""
    return min(max(1, request.page_size or request.max_message_nums or BATCH_COUNT), MESSAGES_MAX)


def page_of(request: pb.ListMessageRequest, records: list[Record]) -> list[Record]:
    """Of the messages found by id or key, those of the page that a query names."""
    count = count_of(request)
    skipped = max(0, request.page_num - 1) * count if request.HasField("page_num") else 0
    return records[skipped : skipped + count]


def has_key(key: str, *, is_id: bool) -> Callable[[Record], bool]:
    """Whether a record has this id or key: brokers find them by hashes, which others may have, too."""
    if is_id:
        return lambda record: record.properties.get(UNIQUE_KEY) == key
    return lambda record: key in record.properties.get("KEYS", "").split(" ")


def query_response(topic: str, records: Iterable[Record], scroll: object = "") -> pb.QueryMessageResponse:
    """`scroll`: where a scan continues; empty at its end."""
    messages = [delivered_message(record, topic=topic) for record in records]
    text = str(scroll)
    found = status() if messages or text else status(pb.MESSAGE_NOT_FOUND, "no message matches")
    return pb.QueryMessageResponse(status=found, messages=messages, scroll_id=text)


def records_of(body: bytes) -> Iterator[tuple[Record, bytes]]:
    """Each record of a body, and its bytes. Raises MalformedRecord."""
    at = 0
    while at < len(body):
        record = decode_record(body, at, check_crc=False)
        yield record, body[at : at + record.total_size]
        at += record.total_size


def verify_response(body: bytes) -> pb.VerifyMessageResponse:
    """A client's answer to CONSUME_MESSAGE_DIRECTLY. Raises MalformedFrame."""
    outcome = fastjson.loads_object(body, "ConsumeMessageDirectlyResult")
    result, remark = json_fields.text(outcome, "consumeResult"), json_fields.text(outcome, "remark")
    if result != "CR_SUCCESS":
        return pb.VerifyMessageResponse(
            status=status(pb.FAILED_TO_CONSUME_MESSAGE, f"{result} {remark}".strip())
        )
    return pb.VerifyMessageResponse(status=status())


def sent_message(request: pb.AdminSendMessageRequest, kind: str, message_id: str) -> pb.Message:
    """The message of AdminSendMessage. `kind`: the topic's message.type; `message_id`: for a request that has none. Raises RpcRefused."""
    message = pb.Message(topic=pb.Resource(name=topic_name(request.topic)), body=request.body)
    message.user_properties.update(request.user_properties)
    system = message.system_properties
    system.CopyFrom(request.system_properties)
    if request.HasField("tag"):
        system.tag = request.tag
    if request.HasField("key"):
        system.keys.append(request.key)
    system.message_id = system.message_id or message_id
    if system.message_type == pb.MESSAGE_TYPE_UNSPECIFIED:
        system.message_type = TYPES.get(kind, pb.NORMAL)
    system.body_encoding = system.body_encoding or pb.IDENTITY
    return message
