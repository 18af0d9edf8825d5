"""Requests as families of /metrics: durations by code and outcome, and the number in progress.

RocketMQ's watermark is the queue length of each thread pool. Here no request waits for a thread: the value is the
number of requests whose handler has not ended, grouped by RocketMQ's pools. `async_put` is, as in RocketMQ, the number
of stored messages whose reply waits for the disk or for replicas.

Source: RemotingMetricsManager, BrokerMetricsManager, BrokerController.registerProcessor (RocketMQ).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from aerobee.broker.admission.ack import AckPolicy
from aerobee.monitoring.exposition import GAUGE, HISTOGRAM, Family, Histogram, joined, label_text
from aerobee.remoting.codes import REQUEST_NAMES, RESPONSE_NAMES, RequestCode
from aerobee.remoting.request_stats import ENDS_S, RequestStats

OTHER = "other"  # unknown request codes
ASYNC_PUT, ADMIN = "async_put", "admin"
# Which of RocketMQ's processors a request has; any other is the one for admin requests.
PROCESSORS: dict[str, tuple[RequestCode, ...]] = {
    "send": (
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.RECALL_MESSAGE,
    ),
    ASYNC_PUT: (),
    "pull": (
        RequestCode.PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
    ),
    "lite_pull": (RequestCode.LITE_PULL_MESSAGE,),
    "ack": (
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    ),
    "query_message": (RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID),
    "client_manager": (RequestCode.UNREGISTER_CLIENT, RequestCode.CHECK_CLIENT_CONFIG),
    "heartbeat": (RequestCode.HEART_BEAT,),
    "transaction": (RequestCode.END_TRANSACTION,),
    "consumer_manager": (
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.QUERY_CONSUMER_OFFSET,
    ),
    "reply": (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2),
    ADMIN: (),
}
_PROCESSOR_OF = {int(code): name for name, codes in PROCESSORS.items() for code in codes}
_ENDS_MS = tuple(end_s * 1000 for end_s in ENDS_S)


def request_families(requests: RequestStats, ack: AckPolicy, common: str) -> Iterator[Family]:
    """Families of answered requests and of requests in progress."""
    meaning = "Time from the arrival of a request to its reply, ms"
    yield Family("rocketmq_rpc_latency", HISTOGRAM, meaning, _latencies(requests, common))
    running = Counter({ASYNC_PUT: ack.waiting_count})
    for code, count in requests.running.items():
        running[_PROCESSOR_OF.get(code, ADMIN)] += count
    samples = ((joined(common, label_text({"processor": name})), running[name]) for name in PROCESSORS)
    meaning = "Requests whose handler has not ended; async_put: messages stored, reply not sent yet"
    yield Family("rocketmq_processor_watermark", GAUGE, meaning, samples)


def _latencies(requests: RequestStats, common: str) -> Iterator[tuple[str, Histogram]]:
    for outcome, latency in requests.latencies():
        labels = {
            "protocol_type": "remoting",
            "request_code": REQUEST_NAMES.get(outcome.request_code, OTHER).lower(),
            "response_code": RESPONSE_NAMES.get(outcome.response_code, str(outcome.response_code)).lower(),
            "is_long_polling": "true" if outcome.waited else "false",
            "result": outcome.result,
        }
        buckets = tuple(zip(_ENDS_MS, latency.within, strict=True))
        yield joined(common, label_text(labels)), Histogram(buckets, latency.times, latency.sum_s * 1000)
