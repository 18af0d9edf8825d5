"""Remoting calls to a broker, as a client makes them, for the integration tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aerobee.broker.assembly.broker import Broker
from aerobee.broker.state.config import BrokerConfig
from aerobee.message import Record, decode_records
from aerobee.remoting.command import RemotingCommand
from aerobee.store.files.config import StoreConfig
from tests.ports import free_broker_port

STORE: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 22,
    "mapped_file_size_consume_queue": 20 * 2_000,
    "max_hash_slot_num": 1_000,
    "max_index_num": 20_000,
    "commit_log_reserve_bytes": 1 << 18,
}


def make_broker(
    path: Path,
    *,
    name: str = "broker-a",
    store: dict[str, Any] | None = None,
    settings_path: str | None = None,
    **config: Any,
) -> Broker:
    """A broker of loopback, not started, at a port at which it can be started again."""
    fields = {
        "bind_address": "127.0.0.1",
        "broker_ip1": "127.0.0.1",
        "listen_port": free_broker_port(),
        "enable_vip_listener": False,
        **config,
    }
    return Broker(
        BrokerConfig(broker_name=name, **fields),
        StoreConfig(store_path_root_dir=str(path), **{**STORE, **(store or {})}),
        settings_path=settings_path,
    )


def send_request(
    topic: str,
    body: bytes = b"body",
    *,
    queue: int = 0,
    properties: str = "UNIQ_KEY\x01U\x02",
    code: int = 310,
) -> RemotingCommand:
    ext = {
        "a": "PG", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0", "g": "1700000000000", "h": "0",
        "i": properties, "j": "0", "k": "false", "m": "true" if code == 320 else "false",
    }  # fmt: skip
    return RemotingCommand(code, ext, body)


def pull_request(
    topic: str, offset: int = 0, *, queue: int = 0, hold_ms: int = 0, group: str = "group", tags: str = "*"
) -> RemotingCommand:
    """A pull that brings its subscription; with `hold_ms` it may be held so long."""
    ext = {
        "consumerGroup": group, "topic": topic, "queueId": str(queue), "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": "6" if hold_ms else "4", "commitOffset": "0",
        "suspendTimeoutMillis": str(hold_ms), "subscription": tags, "subVersion": "0",
    }  # fmt: skip
    return RemotingCommand(11, ext)


def records_of(reply: RemotingCommand) -> list[Record]:
    assert reply.code == 0, reply
    return list(decode_records(reply.body))
