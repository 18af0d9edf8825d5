"""What must hold whatever a peer requests, as judges of a running cluster. They do not know how the product keeps it.

Each is cheap enough to be asked after each sequence, or after some.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from asyncio import events
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any

from aerobee.errors import MalformedFrame
from aerobee.remoting import fastjson
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.loop_watch import LoopWatch
from tests.abuse.hostile_requests import PLAIN
from tests.abuse.semantic_world import GOOD_GROUP, VICTIM, World
from tests.fakes import FakePeer
from tests.survival.hostile_frames import FaultLog

STALL_CPU_S = 0.1
STALLS_OF_ONE_KIND = 3
LEGAL = re.compile(r"[%|a-zA-Z0-9_-]{1,255}\Z")
LEGAL_RETRY_OF_GROUP = re.compile(
    r"%RETRY%[%|a-zA-Z0-9_+-]{1,511}\Z"
)  # a group's, which it reads before it is made
LEGAL_RETRY = re.compile(r"%RETRY%[%|a-zA-Z0-9_-]{1,255}\+[%|a-zA-Z0-9_-]{1,255}\Z")
OWN_GROUP_BEGINNING = "CID_RMQ_SYS_"
OWN_TOPIC_BEGINNINGS = (
    "rmq_sys_",
    "RMQ_SYS_TRANS",
    "RMQ_SYS_ROCKSDB",
    "SCHEDULE_TOPIC",
    "TRANS_CHECK_MAX",
    "%DLQ%",
)
NO_OWN_TOPIC = "rmq_sys_TRACE_DATA_"  # clients write their traces to it
PRINTABLE = re.compile(r"[!-~\u00a1-\ud7ff\ue000-\U0010ffff]{1,511}\Z")
CLUSTERS, TOPICS = 106, 206
LEFT_OUTSIDE = ("/tmp/outside", "/tmp/outside+")
SENDS = {10, 310, 320, 324, 325}
PULLS = {11, 361}
OFFSETS_OF_CLIENTS = {15, 222}
PATH_KEY = re.compile(r"(?i)(path|dir|home|store|blacklist)")


class Stalls:
    """Which request blocked the event loop: by CPU time of its thread, so that a busy machine is no fault."""

    def __init__(self, faults: FaultLog) -> None:
        self.longest_s = 0.0
        self.longest = ""
        self._faults = faults
        self._counts: Counter[str] = Counter()
        self._is_ours = False  # the step that runs now is the fuzzer's own

    def judge(self, cpu_s: float, what: str) -> None:
        if cpu_s > self.longest_s:
            self.longest_s, self.longest = cpu_s, what
        if cpu_s > STALL_CPU_S:
            # Once may be the machine; what a request costs, it costs again.
            self._counts[what] += 1
            if self._counts[what] >= STALLS_OF_ONE_KIND:
                self._faults.add(f"{what} took {cpu_s * 1000:.0f} ms of the event loop")

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Measure every callback of the event loop but the steps of ours()."""
        run = events.Handle._run

        def measured(handle: Any) -> None:
            self._is_ours = False
            started = time.thread_time()
            run(handle)
            spent = time.thread_time() - started
            if spent > STALL_CPU_S and not self._is_ours:
                self.judge(spent, re.sub(r"0x[0-9a-f]+|\d+", "", str(handle))[:200])

        events.Handle._run = measured  # type: ignore[method-assign]
        try:
            yield
        finally:
            events.Handle._run = run  # type: ignore[method-assign]

    async def ours(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run the fuzzer's own coroutine."""
        return await _Ours(work, self)

    def step(self) -> None:
        self._is_ours = True


class _Ours:
    """Awaits a coroutine and tells the watch at each of its steps."""

    def __init__(self, work: Coroutine[Any, Any, Any], stalls: Stalls) -> None:
        self._work, self._stalls = work, stalls

    def __await__(self) -> Generator[Any, Any, Any]:
        answer: Any = None
        step: Callable[[Any], Any] = self._work.send
        while True:
            self._stalls.step()
            try:
                waits_for = step(answer)
            except StopIteration as end:
                return end.value
            try:
                answer, step = (yield waits_for), self._work.send
            except BaseException as error:
                answer, step = error, self._work.throw
            self._stalls.step()


class CpuWatch(LoopWatch):
    """Steps of handlers' coroutines, by CPU time of this thread."""

    def __init__(self, stalls: Stalls) -> None:
        super().__init__(time.thread_time)
        self._stalls = stalls

    def note(self, code: int, address: str, held_s: float) -> None:
        self._stalls.judge(held_s, f"a step of request {code}")


class Judges:
    """All that is checked in one cluster."""

    def __init__(self, world: World, faults: FaultLog) -> None:
        self.world = world
        self._faults = faults
        directories = [world.outside, *(world.outside / "some", world.outside / "some" / "where")]
        self._watched = [str(path) for path in directories]
        self._before = self._times()
        self._queue_directory = str(world.store_path / "consumequeue")
        self._seen_topics: set[str] = set()
        self._seen_groups: set[str] = set()
        self._system: set[str] = set()
        self._files = {
            str(path): self._path_settings(str(path))
            for path in (world.broker_settings, world.nameserver_settings)
        }
        self._settings: dict[str, str] = {}

    def begin(self) -> None:
        """Take the present state as the expected one: right after a start."""
        self._system = set(self.world.broker.topics.topics)
        self._seen_topics = self._seen_groups = set()
        self._settings = self._settings_now()

    # --- after each reply

    def reply(self, request: RemotingCommand, reply: RemotingCommand) -> None:
        """A part answered: may it have said yes?"""
        if reply.code != 0:
            return
        code, ext = request.code, request.ext or {}
        if code in SENDS:
            self._stored(request, ext, reply.ext or {})
        elif code in OFFSETS_OF_CLIENTS:
            group = ext.get("consumerGroup", ext.get("group", ""))
            if group.startswith(OWN_GROUP_BEGINNING):
                self._faults.add(f"request {code} moved the offsets of {group}, the broker's own")

    def _stored(self, request: RemotingCommand, ext: dict[str, str], said: dict[str, str]) -> None:
        topic = ext.get("b" if "b" in ext else "topic", "")
        if topic.startswith(OWN_TOPIC_BEGINNINGS) and not topic.startswith(NO_OWN_TOPIC):
            self._faults.add(f"a client's message to {topic[:80]!r} was taken, the broker's own topic")
        if not self.world.waits_for_disk or "msgId" not in said:
            return
        properties = ext.get("i" if "b" in ext else "properties", "")
        parts = dict(part.split("\x01", 1) for part in properties.split("\x02") if "\x01" in part)
        if parts.get("WAIT", "true").lower() != "true" or request.code == 325:
            return
        store = self.world.broker.store
        durable = store.log.end - store.unflushed_bytes
        offsets = [int(each[-16:], 16) for each in said["msgId"].split(",") if len(each) >= 32]
        if any(offset >= durable for offset in offsets):
            self._faults.add(
                f"a message at {offsets} was answered when the disk had {durable}: properties {properties!r}"
            )

    # --- after each sequence

    def stored(self) -> int:
        """Messages in queues of the plain topics: what is refused at the door shows nothing of what is behind it."""
        queues = self.world.broker.store.queues
        return sum(queue.max_offset for (topic, _), queue in queues.items() if topic in PLAIN)

    def after_some(self) -> None:
        """Whether anything is outside the store: as often as the machine's calls allow."""
        now = self._times()
        if now != self._before:
            names = {path: os.listdir(path) for path in self._watched}
            self._faults.add(
                f"made outside the store: {names}, {dict(zip(LEFT_OUTSIDE, now[-2:], strict=True))}"
            )
            self._before = now

    def after_sequence(self) -> None:
        """The names of topics and groups, and the victim's end."""
        world = self.world
        if world.role == "broker":
            topics = world.broker.topics.topics
            if len(topics) != len(self._seen_topics):
                self._judge_topics(set(topics) - self._seen_topics)
                self._seen_topics = set(topics)
            groups = world.broker.groups.groups
            if len(groups) != len(self._seen_groups):
                self._judge_groups(set(groups) - self._seen_groups)
                self._seen_groups = set(groups)
            end = world.broker.store.max_offset(VICTIM, 0)
            if end != len(world.bodies):
                self._faults.add(
                    f"the topic {VICTIM} ends at {end} after {len(world.bodies)} messages of its owner"
                )
                world.bodies += [b"?"] * (end - len(world.bodies))

    def _times(self) -> tuple[Any, ...]:
        return (
            *(os.stat(path).st_mtime_ns for path in self._watched),
            *(os.path.lexists(path) for path in LEFT_OUTSIDE),
        )

    def _judge_topics(self, names: set[str]) -> None:
        for name in names - self._system:
            if not LEGAL.match(name) and not LEGAL_RETRY.match(name):
                self._faults.add(f"there is a topic with the name {name[:300]!r}")
            if name.startswith("rmq_sys_") and not name.startswith(NO_OWN_TOPIC):
                self._faults.add(f"a client made the broker's topic {name[:300]!r}")

    def _judge_groups(self, names: set[str]) -> None:
        for name in names:
            if not LEGAL.match(name):
                self._faults.add(f"there is a group with the name {name[:300]!r}")

    # --- now and then

    def now_and_then(self) -> None:
        """What costs more: offsets, directories of queues, settings."""
        if self.world.role == "broker":
            self._judge_offsets()
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._queue_directory):
                if name not in self._system and not LEGAL.match(name) and not LEGAL_RETRY.match(name):
                    self._faults.add(f"made in the store: a queue of {name!r}")
        if self.world.role == "nameserver":
            for name in self.world.nameserver.table.topics:
                if not PRINTABLE.match(
                    name
                ):  # wider: what a broker's name may hold, and other products' topics
                    self._faults.add(f"the nameserver routes to a topic {name[:300]!r}")
            self._judge_answers()
        if (settings := self._settings_now()) != self._settings:
            self._faults.add(f"paths in force are {settings}, they were {self._settings}")
            self._settings = settings
        for path, before in self._files.items():
            if (now := self._path_settings(path)) != before:
                self._faults.add(f"{path} has lines {sorted(now ^ before)} that say where files lie")
                self._files[path] = now

    def _judge_answers(self) -> None:
        """What every client and tool asks a nameserver for can be read."""
        for code in (CLUSTERS, TOPICS):
            handler = self.world.nameserver.handlers[code]
            reply: Any = handler(FakePeer(), RemotingCommand(code, {}))  # type: ignore[arg-type]
            try:
                assert reply.code == 0, reply.remark
                fastjson.loads(reply.body)
            except (AssertionError, MalformedFrame) as error:
                self._faults.add(f"the nameserver's answer to {code} cannot be read: {error}")

    def _judge_offsets(self) -> None:
        store, topics = self.world.broker.store, self.world.broker.topics
        for key, queues in self.world.broker.offsets.to_dict()["offsetTable"].items():
            topic, _, group = key.rpartition("@")
            config = topics.get(topic)
            for queue_id, offset in queues.items():
                end = store.max_offset(topic, queue_id)
                if not 0 <= offset <= end:
                    self._faults.add(
                        f"group {group} has offset {offset} of {topic} {queue_id}, which ends at {end}"
                    )
                if not 0 <= queue_id < 65_536 or (config is None and not LEGAL_RETRY_OF_GROUP.match(topic)):
                    self._faults.add(
                        f"group {group} has an offset of queue {queue_id} of {topic!r}, which is none"
                    )
        victims = self.world.broker.offsets.query(GOOD_GROUP, VICTIM, 0)
        if victims != self.world.committed:
            self._faults.add(f"{GOOD_GROUP} committed {self.world.committed} of {VICTIM}, it is {victims}")
            self.world.committed = victims

    def _settings_now(self) -> dict[str, str]:
        """Every setting in force that says where files lie."""
        configs = (self.world.broker.config, self.world.broker.store.config, self.world.nameserver.config)
        return {
            f"{type(config).__name__}.{name}": str(getattr(config, name))
            for config in configs
            for name in config.__dataclass_fields__
            if PATH_KEY.search(name) and isinstance(getattr(config, name), str | None)
        }

    @staticmethod
    def _path_settings(path: str) -> set[str]:
        """The lines of a settings file that say where files lie, as the simplest of readers would find them."""
        with open(path, encoding="utf-8", newline="") as file:
            lines = re.split(r"[\r\n]+", file.read())
        return {line for line in lines if PATH_KEY.search(re.split(r"[=:\s]", line.strip(), maxsplit=1)[0])}


def is_extension(before: dict[Any, list[bytes]], after: dict[Any, list[bytes]]) -> str:
    """What of `before` is not in `after`, or "": queues may have grown, and what they had they have still."""
    for key, records in before.items():
        then, now = b"".join(records), b"".join(after.get(key, []))
        if now[: len(then)] != then:
            return f"queue {key} had {len(then)} bytes of records, it has {len(now)} and others"
    return ""
