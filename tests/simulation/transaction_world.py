"""One run of a broker's transactions on a simulated disk, from a seed: producers that die, repeat and contradict
themselves, a broker that is killed or loses power at any point.

The real store, the real half, op and commit records, the real checks; only sockets are left out: requests are handed
to the handlers, and checks arrive at ProducerPeer. What must hold, looked at after every start and at the end:

- a message is delivered at most once into the log, and only after a producer committed it;
- once a rollback was confirmed and is durable, its message is never delivered; once a commit was, it is there;
- while undecided it is not delivered;
- a check is not sent before its time, and TRANSACTION_CHECK_TIMES never counts one that was not sent;
- when the faults end and a producer runs, every transaction is decided, as its producer says.
"""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

from aerobee.broker.admission.ack import AckPolicy
from aerobee.broker.admission.record_access import RecordAccess
from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.delay.escaped import FILE_NAME, EscapedDeliveries
from aerobee.broker.metrics.stats import BrokerStats
from aerobee.broker.parts.parts import any_client_may_send
from aerobee.broker.send.message_writer import MessageWriter
from aerobee.broker.state.config import BrokerConfig, LiveConfig
from aerobee.broker.state.config_file import ConfigFile
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.producer_registry import ProducerRegistry
from aerobee.broker.state.role import Role, RoleState
from aerobee.broker.state.settled_decisions import SettledDecisions
from aerobee.broker.state.topic_table import TopicTable
from aerobee.broker.state.unserved import UnservedKinds
from aerobee.broker.transaction.service import Transactions
from aerobee.clock import ManualClock
from aerobee.errors import AerobeeError, StoreError
from aerobee.message import (
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    decode_record,
    encode_properties,
)
from aerobee.remoting.command import FLAG_ONEWAY, RemotingCommand
from aerobee.simulation.simulated_disk import PowerCut, SimulatedDisk
from aerobee.store.files.config import StoreConfig
from aerobee.store.log.stored_message import StoredMessage
from aerobee.store.message_store import MessageStore
from tests.fakes import FakePeer
from tests.simulation.store_world import InlineExecutor

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
TOPIC, GROUP = "orders", "PG"
QUEUES = 2
IMMUNITY_MS, INTERVAL_MS, CHECKS_MAX = 6_000, 60_000, 15


class ProducerPeer(FakePeer):
    """A connection of the producer group: keeps the checks that arrive, and counts those ever sent in `sent`."""

    def __init__(self, sent: Counter[str]) -> None:
        super().__init__()
        self.sent_checks = sent
        self.checks: list[RemotingCommand] = []
        self.confirmed: set[int] = set()  # opaque of the requests that were answered with code 0
        self.refused: set[int] = set()

    def invoke_oneway(self, command: RemotingCommand) -> None:
        assert self.is_open
        self.sent_checks[(command.ext or {})["transactionId"]] += 1
        self.checks.append(command)

    def write(self, data: bytes) -> None:
        super().write(data)
        for reply in self.replies():
            self.took(reply)
        self.written.clear()

    def took(self, reply: RemotingCommand) -> None:
        (self.confirmed if reply.code == 0 else self.refused).add(reply.opaque)


class Wish:
    """The simulation's record of one transaction."""

    def __init__(self, number: int, final: int) -> None:
        self.id = f"T{number}"
        self.final = final  # the producer's answer to a check
        self.said: list[int] = []  # what was said, in order
        self.places: list[tuple[int, int]] = []  # queue offset and physical offset of each copy we know
        self.end = 0  # of the newest half record
        self.stored_ms = 0
        self.immunity_ms = IMMUNITY_MS
        self.sure: tuple[int, int] | None = None  # a confirmed decision, and the log's end that proves it
        self.is_contrary = False


class World:
    """A broker's store and transactions, their disk, and the producers."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.clock = ManualClock()
        self.disk = SimulatedDisk(rng, now_ms=lambda: self.clock.now_ms())
        self.is_sync = rng.random() < 0.4
        self.config = StoreConfig(
            store_path_root_dir="/store",
            mapped_file_size_commit_log=rng.choice((8192, 16384, 65536)),
            mapped_file_size_consume_queue=rng.choice((400, 2000)),
            max_hash_slot_num=16,
            max_index_num=rng.choice((64, 1024)),
            commit_log_reserve_bytes=rng.choice((4096, 16384)),
            flush_disk_type="SYNC_FLUSH" if self.is_sync else "ASYNC_FLUSH",
        )
        self.live = LiveConfig(
            BrokerConfig(
                broker_name="broker-a",
                transaction_time_out=IMMUNITY_MS,
                transaction_check_interval=INTERVAL_MS,
                transaction_check_max=CHECKS_MAX,
                transaction_op_batch_interval=rng.choice((100, 3_000)),
                transaction_op_msg_max_size=rng.choice((8, 4_096)),
            )
        )
        self.wishes: dict[str, Wish] = {}
        self.opaque = 0
        self.ends: dict[int, tuple[Wish, int]] = {}  # opaque of an END_TRANSACTION that is not answered yet
        self.counts: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()  # checks by transaction, over all runs
        self.start()

    # --- the broker

    def start(self) -> None:
        self.clock = ManualClock(self.clock.now_ms())  # timers of a run that ended are gone with it
        self.store = MessageStore(
            self.config, disk=self.disk, clock=self.clock, executor=InlineExecutor(), store_host=lambda: HOST
        )
        self.store.load()
        self.offsets = ConsumerOffsets(clock=self.clock, file=self.file("consumerOffset.json"))
        self.offsets.load()
        self.producers = ProducerRegistry(clock=self.clock, call_soon=lambda run: run())
        self.writer = MessageWriter(self.store)
        parts: Any = SimpleNamespace(
            store=self.store,
            writer=self.writer,
            unserved=UnservedKinds(),
            decisions=SettledDecisions(),
            topics=TopicTable(file=None, clock=self.clock),
            offsets=self.offsets,
            live=self.live,
            identity=BrokerIdentity(
                cluster="c", name="broker-a", broker_id=0, address="127.0.0.1:10911", ha_address="",
                store_host=HOST, region="r",
            ),
            role=RoleState(Role.MASTER, "of the test"),
            clock=self.clock,
            config_file=self.file,
            escaped=EscapedDeliveries(self.file(FILE_NAME)),
            run_blocking=self.run_blocking,
            stats=BrokerStats(clock=self.clock, cluster="c"),
            producers=self.producers,
            ack=AckPolicy(store=self.store, clock=self.clock, timeout_ms=3_600_000),
            may_send=any_client_may_send,
            records=RecordAccess(),
            schedule=None,  # for the fast path, which is not part of this simulation
        )  # fmt: skip
        self.part = Transactions(parts)
        self.writer.add_hook(self.part.put_hook)
        self.part.load()
        self.part.start()
        self.producer = ProducerPeer(self.sent)
        self.ends.clear()
        self.come()

    def file(self, name: str) -> ConfigFile:
        return ConfigFile(self.config.path("config", name), disk=self.disk)

    def run_blocking(self, work: Any) -> None:
        try:
            work()
        except AerobeeError:
            self.counts["unwritten files"] += 1

    def restart(self, how: str) -> None:
        self.counts[how] += 1
        self.note_answers()
        if how == "stop":
            self.part.stop()
            try:
                self.offsets.save()
                self.part.save()
                self.store.flush_now()
                self.store.flush_queues_now()
            except StoreError:
                self.counts["failed stops"] += 1
            self.note_answers()
            self.disk.crash()
        elif how == "kill":
            self.disk.crash()
        else:
            flushed = self.store.flushed.value
            self.disk.power_loss()
            for wish in self.wishes.values():
                if wish.sure is not None and wish.sure[1] > flushed:
                    wish.sure = None  # async flush: what was confirmed is lost with the machine
        self.start()
        self.check()

    # --- producers

    def come(self) -> None:
        self.producer.is_open = True
        self.producers.register(GROUP, self.producer, "client", language=0, version=1)  # type: ignore[arg-type]

    def go(self) -> None:
        self.producer.is_open = False
        self.producers.connection_closed(self.producer)  # type: ignore[arg-type]

    def prepare(self) -> None:
        """Send a half message, or repeat a send whose answer is taken for lost."""
        rng = self.rng
        number = len(self.wishes)
        if self.wishes and rng.random() < 0.15:
            wish = list(self.wishes.values())[-1]
            if wish.said or self.sent[wish.id]:
                return  # a producer that has said how it ended does not send it again
        else:
            wish = Wish(number, rng.choice((TRANSACTION_COMMIT, TRANSACTION_ROLLBACK)))
            wish.is_contrary = rng.random() < 0.1
        properties = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": wish.id, "TAGS": "x"}
        if wish.immunity_ms != IMMUNITY_MS or (not wish.places and rng.random() < 0.2):
            wish.immunity_ms = 20_000
            properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] = "20"
        message = StoredMessage(
            topic=TOPIC,
            queue_id=number % QUEUES,
            body=wish.id.encode()
            + b":"
            + bytes(rng.randrange(1, 256) for _ in range(rng.choice((0, 30, 300)))),
            properties=encode_properties(properties).encode(),
            born_host=HOST,
            sys_flag=TRANSACTION_PREPARED,
            born_timestamp=self.clock.now_ms() + rng.choice((-100_000, 0, 50_000)),  # clocks differ
        )
        try:
            result = self.writer.put(message, properties)
        except StoreError:
            return
        if not wish.places:
            wish.stored_ms = self.clock.now_ms()
            self.wishes[wish.id] = wish
        wish.places.append((result.queue_offset, result.physical_offset))
        wish.end = result.end

    def say(
        self, wish: Wish, decision: int, *, place: tuple[int, int], waits: bool, from_check: bool
    ) -> None:
        self.opaque += 1
        request = RemotingCommand(
            37,
            {
                "producerGroup": GROUP,
                "tranStateTableOffset": str(place[0]),
                "commitLogOffset": str(place[1]),
                "commitOrRollback": str(decision),
                "fromTransactionCheck": "true" if from_check else "false",
                "msgId": wish.id,
                "transactionId": wish.id,
            },
            opaque=self.opaque,
            flag=0 if waits else FLAG_ONEWAY,
        )
        if decision:
            wish.said.append(decision)
        if waits:
            self.ends[self.opaque] = (wish, decision)
        reply: Any = self.part.ends.end(self.producer, request)  # type: ignore[arg-type]
        if reply is not None and waits:
            self.producer.took(reply)
        self.note_answers()

    def note_answers(self) -> None:
        """A confirmed decision is one that holds, as long as the log is there."""
        for opaque in list(self.ends):
            if opaque in self.producer.confirmed:
                wish, decision = self.ends.pop(opaque)
                if wish.sure is None:
                    wish.sure = (decision, self.store.log.end)
                assert wish.sure[0] == decision, f"{wish.id}: {decision} was confirmed after {wish.sure[0]}"
            elif opaque in self.producer.refused:
                del self.ends[opaque]

    def end_some(self) -> None:
        for wish in self.rng.sample(list(self.wishes.values()), k=min(3, len(self.wishes))):
            decision = self.rng.choice((wish.final, wish.final, 0))
            if wish.is_contrary and self.rng.random() < 0.5:
                decision = self.rng.choice((TRANSACTION_COMMIT, TRANSACTION_ROLLBACK))
            place = self.rng.choice(wish.places)
            self.say(wish, decision, place=place, waits=self.rng.random() < 0.5, from_check=False)

    def answer_checks(self, *, everything: bool = False) -> None:
        """Take the checks that arrived and answer some of them."""
        checks, self.producer.checks = self.producer.checks, []
        for check in checks:
            ext = check.ext or {}
            record = decode_record(check.body)
            wish = self.wishes[ext["transactionId"]]
            assert record.topic == TOPIC
            assert record.properties["UNIQ_KEY"] == wish.id
            # The copy is stored before the check is sent: a power cut in between leaves one that was not sent.
            assert (
                int(record.properties["TRANSACTION_CHECK_TIMES"]) <= self.sent[wish.id] + self.counts["cut"]
            )
            assert self.clock.now_ms() - wish.stored_ms >= IMMUNITY_MS
            place = (int(ext["tranStateTableOffset"]), int(ext["commitLogOffset"]))
            wish.places.append(place)
            if everything or self.rng.random() < 0.6:
                decision = wish.final if everything else self.rng.choice((wish.final, wish.final, 0))
                self.say(wish, decision, place=place, waits=self.rng.random() < 0.3, from_check=True)

    # --- the run

    def step(self) -> None:
        rng = self.rng
        action = rng.random()
        if action < 0.40:
            self.prepare()
        elif action < 0.65:
            self.end_some()
        elif action < 0.80:
            self.advance(rng.choice((0.0, 0.05, 0.2, 3.5, 7.0, 25.0, 61.0)))
            self.answer_checks()
        elif action < 0.85:
            self.go() if self.producer.is_open else self.come()
        elif action < 0.93:
            self.store.flush_now()
            self.note_answers()
        else:
            self.store.flush_queues_now()

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        write = self.offsets.prepare_save()
        if write is not None:
            self.run_blocking(write)
        self.note_answers()

    def run(self, rounds: int = 4) -> None:
        for _ in range(rounds):
            cut = self.rng.random() < 0.3
            if cut:
                self.disk.cut_power_at(self.rng.randrange(1, 60))
            try:
                for _ in range(self.rng.randint(4, 20)):
                    self.step()
            except PowerCut:
                self.counts["cut"] += 1
                self.restart("power loss")
                continue
            self.restart("power loss" if cut else self.rng.choice(("stop", "kill", "kill", "power loss")))
        self.settle()

    def settle(self) -> None:
        """The faults have ended: every producer answers."""
        if not self.producer.is_open:
            self.come()
        for _ in range(8):
            self.clock.advance(INTERVAL_MS / 1000 + 1)
            self.answer_checks(everything=True)
            self.store.flush_now()
        assert not self.part.transaction_store.table.by_key, (
            "transactions stay open though their producer answers"
        )
        self.check(settled=True)

    # --- what must hold

    def delivered(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for queue_id in range(QUEUES):
            queue = self.store.queues.get((TOPIC, queue_id))
            for offset in range(queue.max_offset if queue is not None else 0):
                entry = queue.entry(offset)  # type: ignore[union-attr]
                assert entry is not None
                record = decode_record(self.store.log.read(entry[0], entry[1]))
                assert record.body.startswith(f"{record.properties['UNIQ_KEY']}:".encode())
                assert record.sys_flag & 0xC == TRANSACTION_COMMIT
                found[record.properties["UNIQ_KEY"]] += 1
        return found

    def check(self, *, settled: bool = False) -> None:
        found = self.delivered()
        gave_up = self.part.transaction_store.given_up_count
        for wish in self.wishes.values():
            count = found[wish.id]
            assert count <= 1, f"{wish.id} was delivered {count} times"
            if count:
                assert TRANSACTION_COMMIT in wish.said, f"{wish.id} was delivered without a commit"
            if wish.sure is not None:
                wanted = int(wish.sure[0] == TRANSACTION_COMMIT)
                assert count == wanted, f"{wish.id}: {wish.sure} was confirmed, delivered {count} times"
            if settled and not wish.is_contrary and self.half_is_there(wish) and not gave_up:
                wanted = int(wish.final == TRANSACTION_COMMIT)
                assert count == wanted, f"{wish.id}: {wish.said}, delivered {count} times in the end"

    def half_is_there(self, wish: Wish) -> bool:
        for _, physical_offset in wish.places:
            half = self.part.transaction_store.half_at(physical_offset)
            if half is not None and half.transaction_id == wish.id:
                return True
        return False
