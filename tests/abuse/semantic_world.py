"""What the semantic fuzzer attacks: one NameServer and one broker in this process, over a directory of its files only.

    outside/some/where/store/     the broker's store; its settings file and the NameServer's files lie in it, too
    outside/some/where            and nothing else, ever

Requests are given to connections of the real servers as the event loop would; replies are read from what they write. A
restart opens everything again over the files, with the settings that were written meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aerobee.broker.assembly.broker import Broker
from aerobee.broker.state.config import BrokerConfig
from aerobee.client import PushConsumer
from aerobee.clock import AdvancingClock
from aerobee.config import build, properties_text, read_properties, to_properties
from aerobee.message import decode_records
from aerobee.nameserver.config import NameServerConfig
from aerobee.nameserver.server import NameServer
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.connection import Connection, Endpoint
from aerobee.remoting.frame import FrameDecoder, encode_frame
from aerobee.store.files.config import StoreConfig
from tests.survival.hostile_frames import Fault, TappedNetwork

VICTIM, GOOD_GROUP = "victim", "good"
HOST = "127.0.0.1"
SYSTEM_BUSY, SENDS_AGAIN_MAX = 2, 100
CALL_TIMEOUT_S = 120.0
SETTLE_PASSES = 6
SETTLE_S = 0.06
STORE: dict[str, Any] = {
    "enable_lmq": True,
    "enable_multi_dispatch": True,
    "mapped_file_size_commit_log": 8 << 20,
    "mapped_file_size_consume_queue": 20 * 500,
    "max_hash_slot_num": 5_000,
    "max_index_num": 20_000,
    "commit_log_reserve_bytes": 1 << 20,
    "timer_wheel_enable": True,
}
BROKER: dict[str, Any] = {
    "enable_property_filter": True,
    "recall_message_enable": True,
    "bind_address": HOST,
    "broker_ip1": HOST,
    "listen_port": 0,
    "broker_name": "broker-a",
    "enable_vip_listener": False,
}


class World:
    """The parts that are attacked. start(), any number of restart(), stop()."""

    def __init__(self, outside: Path, role: str, *, waits_for_disk: bool = False) -> None:
        """`role`: who is attacked. `waits_for_disk`: the broker answers when the disk has what it stored."""
        self.outside, self.role = outside, role
        self.store_path = outside / "some" / "where" / "store"
        self.store_path.mkdir(parents=True)
        self.broker_settings = self.store_path / "broker.conf"
        self.nameserver_settings = self.store_path / "namesrv.conf"
        self.waits_for_disk = waits_for_disk
        self.clock = AdvancingClock()
        self.bodies: list[bytes] = []  # what the well-behaved producer sent to VICTIM's queue 0
        self.committed: int | None = None  # by its owner's group
        self._network = TappedNetwork()
        self._stack = contextlib.AsyncExitStack()
        self.broker: Broker
        self.nameserver: NameServer
        self.endpoint: Endpoint
        self.make: Callable[[], Connection]
        flush = {"flush_disk_type": "SYNC_FLUSH"} if waits_for_disk else {}
        store = StoreConfig(store_path_root_dir=str(self.store_path), **STORE, **flush)
        self._write_settings(self.broker_settings, BrokerConfig(**BROKER), store)
        self._write_settings(
            self.nameserver_settings,
            NameServerConfig(
                bind_address=HOST,
                listen_port=0,
                shutdown_wait_time_seconds=0,
                kv_config_path=str(self.store_path / "kvConfig.json"),
                config_store_path=str(self.nameserver_settings),
            ),
        )

    @staticmethod
    def _write_settings(path: Path, *configs: Any) -> None:
        path.write_text(properties_text({k: v for k, v in to_properties(*configs).items() if v}))

    async def start(self) -> None:
        self.clock = AdvancingClock()
        self.nameserver = NameServer(
            build(NameServerConfig, read_properties(self.nameserver_settings)),
            clock=self.clock,
            network=self._network,
        )
        await self.nameserver.start()
        settings = read_properties(self.broker_settings)
        self.broker = Broker(
            build(BrokerConfig, settings, namesrv_addr=self.nameserver.address),
            build(StoreConfig, settings),
            clock=self.clock,
            network=self._network,
            settings_path=str(self.broker_settings),
        )
        await self.broker.start()
        if self.role == "client":
            # It has joined before the attack begins; no member consumes while a judge reads the files.
            consumer = await self._stack.enter_async_context(
                PushConsumer(
                    self.nameserver.address,
                    "hostile-group",
                    subscriptions={"u": "*"},
                    handler=lambda _: None,
                    clock=self.clock,
                )
            )
            self.endpoint = Endpoint(consumer._session.handlers)
            self.make = lambda: Connection(self.endpoint)
            return
        part: Any = self.broker.ports.main if self.role == "broker" else self.nameserver._server
        address = self.broker.address if self.role == "broker" else self.nameserver.address
        factory: Any = self._network.factories[int(address.rpartition(":")[2])]
        self.endpoint, self.make = part._endpoint, factory

    @property
    def address(self) -> tuple[str, int]:
        """Of the server that is attacked."""
        part = self.nameserver if self.role == "nameserver" else self.broker
        host, _, port = part.address.rpartition(":")
        return host, int(port)

    @property
    def handlers(self) -> Any:
        return self.endpoint.handlers

    async def stop(self, *, crash: bool = False) -> None:
        """End both; with `crash` the broker as if it had been killed."""
        await self._stack.aclose()
        await (self.broker.kill() if crash else self.broker.stop())
        await self.nameserver.stop()

    async def abandon(self) -> None:
        """End what runs after a fault, however it ends: what stays would disturb the clusters that follow."""
        with contextlib.suppress(Exception):
            await self.stop(crash=True)

    async def restart(self, *, crash: bool) -> None:
        await self.stop(crash=crash)
        await self.start()

    async def pass_time(self, seconds: float) -> None:
        """Let the parts' clock jump, and what is due then happen."""
        self.clock.advance(seconds)
        for _ in range(SETTLE_PASSES):
            await asyncio.sleep(0)

    # --- the well-behaved peer

    async def send(self) -> None:
        """Send one message to VICTIM as its owner. Raises Fault."""
        ext = {"a": GOOD_GROUP, "b": VICTIM, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0", "i": "", "j": "0",
               "k": "false", "m": "false"}  # fmt: skip
        body = b"message %d" % len(self.bodies)
        reply = await self.call(RemotingCommand(310, ext, body))
        for _ in range(SENDS_AGAIN_MAX):
            if reply.code != SYSTEM_BUSY:
                break
            await asyncio.sleep(0.2)  # the machine's disk is slow: that is said, and passes
            reply = await self.call(RemotingCommand(310, ext, body))
        if reply.code != 0:
            raise Fault(f"a well-behaved producer was answered {reply.code}: {reply.remark}")
        self.bodies.append(body)

    async def commit(self, offset: int) -> None:
        """Commit VICTIM's offset of its owner's group. Raises Fault."""
        ext = {
            "consumerGroup": GOOD_GROUP,
            "topic": VICTIM,
            "queueId": "0",
            "commitOffset": str(offset),
        }
        reply = await self.call(RemotingCommand(15, ext))
        if reply.code != 0:
            raise Fault(f"a well-behaved consumer's commit was answered {reply.code}: {reply.remark}")
        self.committed = offset

    async def read_victim(self) -> list[bytes]:
        """The bodies of VICTIM's queue as its owner pulls them."""
        found: list[bytes] = []
        while True:
            ext = {"consumerGroup": GOOD_GROUP, "topic": VICTIM, "queueId": "0", "queueOffset": str(len(found)),
                   "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*"}  # fmt: skip
            reply = await self.call(RemotingCommand(11, ext))
            if reply.code != 0:
                return found
            found += [record.body for record in decode_records(reply.body)]

    async def settle(self) -> None:
        """Let what peers left behind end, and have the NameServer write its table once more. Raises Fault."""
        await asyncio.sleep(SETTLE_S)
        ext = {"namespace": GOOD_GROUP, "key": "restart", "value": str(len(self.bodies))}
        reply = await self.call(RemotingCommand(100, ext), self.nameserver.address)
        if reply.code != 0:
            raise Fault(f"a well-behaved tool's KV configuration was answered {reply.code}: {reply.remark}")

    async def call(self, request: RemotingCommand, address: str = "") -> RemotingCommand:
        """Ask the broker, or who is at `address`, over a socket. Raises Fault when it does not answer."""
        host, _, port = (address or self.broker.address).rpartition(":")
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(encode_frame(request))
                size = int.from_bytes(await reader.readexactly(4), "big")
                data = size.to_bytes(4, "big") + await reader.readexactly(size)
                writer.close()
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise Fault(
                f"request {request.code} of a well-behaved peer had no answer: {type(error).__name__}"
            ) from error
        decoder = FrameDecoder()
        decoder.feed(data)
        reply = decoder.next_frame()
        assert reply is not None
        return reply

    def everything_stored(self) -> dict[tuple[str, int], list[bytes]]:
        """The records of each queue, as a consumer would get them."""
        store = self.broker.store
        found: dict[tuple[str, int], list[bytes]] = {}
        for key in store.queues:
            records = found[key] = []
            offset = store.min_offset(*key)
            while offset < store.max_offset(*key):
                result = store.get_messages(*key, offset, count_max=32)
                if result.body:
                    records.append(bytes(result.body))
                if result.next_offset <= offset:
                    raise Fault(f"reading {key} stands still at {offset}: {result.status}")
                offset = result.next_offset
        return found
