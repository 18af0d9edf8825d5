"""Messages of a topic for one worker of a framework: pops them ahead, renews their invisible time, settles them.

It runs in one event loop; take() and the read-only properties are for any thread. It pops no more than
`wanted()` allows and then waits for space_freed(), so a quiet or a busy worker sends no requests besides one long poll
for each broker and the renewals.

Invariants: a delivery is in `_held` from its pop until a broker has accepted its verdict; it is in `_ready` until the
worker takes it. A taken delivery is renewed at half of its invisible time, for as long as this process lives: after
`kill -9` the broker redelivers it within one invisible time. A delivery that the worker does not take within half
of its invisible time is returned, so that another worker gets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from aerobee.client.base.config import ClientConfig, SimpleConsumerConfig
from aerobee.client.consumer.popped import PoppedMessage
from aerobee.client.consumer.simple_consumer import SimpleConsumer
from aerobee.contrib.delivery import Delivery, Verdict
from aerobee.errors import AerobeeError, RemoteError
from aerobee.remoting.codes import ResponseCode
from aerobee.remoting.protocol import POP_COUNT_MAX

log = logging.getLogger(__name__)

# Pause after a failed pop or verdict, doubled up to the maximum.
PAUSE_FIRST_S, PAUSE_MAX_S = 0.2, 5.0
# Passes over the held deliveries in one invisible time. Renewal is due at half of it.
PASSES = 6
# Returned messages become visible after this time: until the connections are closed, a broker would hand them to the pop
# that is pending here, and after close() they would be away for a whole invisible time.
RETURN_AFTER_S = 1.0
# close() waits for the reply of a pop until the pop is this old: a broker that has messages replies before, and they can
# be returned. It cancels an older one, which is pending because there are none.
FRESH_POP_S = 2.0
LATE_POPS_S = 2.0  # how often replies of other brokers are taken in while there is no space for more


class PopQueue:
    """Messages of `topic` for the group of the same name, unless `group` names another."""

    def __init__(
        self,
        nameservers: str | Sequence[str],
        topic: str,
        *,
        client: ClientConfig | None,
        wanted: Callable[[], int],
        notify: Callable[[], None],
        group: str = "",
        invisible_s: float = 60.0,
        wait_s: float = 15.0,
        close_timeout_s: float = 10.0,
        expression: str = "*",
        from_begin: bool = True,
        max_redeliveries: int = -1,
    ) -> None:
        """`wanted`: how many messages there is space for. `notify`: called, in the loop, when take() has a message.

        `invisible_s`: invisible time of a delivery, renewed while the worker has it. `wait_s`: how long a broker keeps
        a pop pending. `close_timeout_s`: how long close() waits for brokers that do not answer. `expression`: tags or Sql().
        `from_begin`, `max_redeliveries`: as in SimpleConsumerConfig, where the latter is `retry_count_max`.
        """
        self.topic = topic
        self._invisible_s = invisible_s
        self._close_timeout_s = close_timeout_s
        self._wanted = wanted
        self._notify = notify
        self._consumer = SimpleConsumer(
            nameservers,
            group or topic,
            {topic: expression},
            config=SimpleConsumerConfig(
                invisible_s=invisible_s,
                wait_s=wait_s,
                from_begin=from_begin,
                retry_count_max=max_redeliveries,
            ),
            client=client,
        )
        self._ready: deque[Delivery] = deque()
        self._lock = threading.Lock()
        self._held: set[Delivery] = set()
        self._decided: dict[Delivery, None] = {}
        self._has_decided = asyncio.Event()
        self._space = asyncio.Event()
        self._all_settled = asyncio.Event()
        self._receiving: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._is_paused = False
        self._closed = False
        self._pop_began_s = 0.0

    @property
    def ready_count(self) -> int:
        """Messages that take() can return now."""
        return len(self._ready)

    @property
    def held_count(self) -> int:
        """Messages that this process has of the queue."""
        return len(self._held)

    # in the loop

    async def start(self) -> None:
        """Join the group. Raises TopicNotExist for a topic that does not exist, ConnectFailed without a NameServer."""
        await self._consumer.start()
        self._tasks = [
            asyncio.create_task(self._settle_decided(), name="pop-settle"),
            asyncio.create_task(self._keep_held(), name="pop-renew"),
        ]

    async def receive(self) -> None:
        """Begin to pop messages ahead of take()."""
        self._is_paused = False
        if self._receiving is None or self._receiving.done():
            self._receiving = asyncio.create_task(self._receive(), name="pop-receive")

    async def pause(self) -> None:
        """Pop no more, and return what the worker has not taken.

        A pop that is pending at a broker continues, and its messages are returned too: a broker would hand messages to
        a cancelled one, and no worker would get them before their invisible time expired.
        """
        self._is_paused = True
        self._space.set()
        with self._lock:
            waiting = list(self._ready)
            self._ready.clear()
        for delivery in waiting:
            self.settle(delivery, Verdict.RETURN)

    async def close(self) -> None:
        """Return what is not settled, wait until brokers know every verdict (at most `close_timeout_s`), leave the group."""
        if self._closed:
            return
        self._closed = True
        try:
            await self.pause()
            if self._receiving is not None:
                fresh_s = self._pop_began_s + FRESH_POP_S - time.monotonic()
                await asyncio.wait({self._receiving}, timeout=max(0.0, fresh_s))
                self._receiving.cancel()
                await asyncio.gather(self._receiving, return_exceptions=True)
            for message in self._consumer.arrived():
                await self._arrived(message)
            for delivery in tuple(self._held):
                self.settle(delivery, Verdict.RETURN)
            try:
                async with asyncio.timeout(self._close_timeout_s):
                    while self._held:
                        self._all_settled.clear()
                        await self._all_settled.wait()
            except TimeoutError:
                log.warning(
                    "queue %s: closed while brokers do not answer about %d messages: they are redelivered after %g s",
                    self.topic,
                    len(self._held),
                    self._invisible_s,
                )
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._consumer.close()

    async def pop_one(self) -> Delivery | None:
        """A message that is ready at a broker now, without waiting for one."""
        if (delivery := self.take()) is not None:
            return delivery
        for message in await self._consumer.receive(1, wait_s=0):
            await self._arrived(message)
        return self.take()

    async def purge(self, count_max: int) -> int:
        """Acknowledge ready messages: all, or at least `count_max` of them. Returns their number."""
        count, empty_count = 0, 0
        while empty_count < 2 and count < count_max + POP_COUNT_MAX:
            found = await self._consumer.receive(POP_COUNT_MAX, wait_s=0)
            if found:
                await self._consumer.ack_all(found)
            count += len(found)
            empty_count = 0 if found else empty_count + 1
        return count

    def space_freed(self) -> None:
        """`wanted()` may be above 0 again."""
        self._space.set()

    def settle(self, delivery: Delivery, verdict: Verdict, reason: str = "", *, after_s: float = 0.0) -> None:
        """Send the verdict to the broker in the background, again and again until it accepts or has redelivered.

        `reason`: of a dead letter. `after_s`: a requeued message becomes visible that much later.
        """
        if delivery.verdict is not None or delivery not in self._held:
            return
        delivery.verdict, delivery.reason, delivery.after_s = verdict, reason, after_s
        if not delivery.is_busy:
            self._decided[delivery] = None
            self._has_decided.set()

    def renew_no_more(self, delivery: Delivery) -> None:
        """The worker is done with it without a verdict: unless settle() follows in time, the broker redelivers it."""
        delivery.renew_at_s = math.inf
        delivery.forget_at_s = time.monotonic() + self._invisible_s

    # from any thread

    def take(self) -> Delivery | None:
        """The next message, None when none is here."""
        with self._lock:
            return self._ready.popleft() if self._ready else None

    # receiving

    async def _receive(self) -> None:
        pause_s = PAUSE_FIRST_S
        while True:
            if self._is_paused:
                await self._return_pending()
                if self._is_paused:
                    return
            count = self._wanted()
            if count <= 0:
                await self._wait_for_space()
                continue
            self._pop_began_s = time.monotonic()
            try:
                found = await self._consumer.receive(min(count, POP_COUNT_MAX))
                for message in found:
                    await self._arrived(message)
            except AerobeeError as error:
                log.warning("queue %s: no messages for %g s: %s", self.topic, pause_s, error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
            else:
                pause_s = PAUSE_FIRST_S

    async def _return_pending(self) -> None:
        """While paused: wait for the pops that are pending at other brokers, and return their messages."""
        while self._is_paused and self._consumer.pending_count:
            await asyncio.sleep(LATE_POPS_S)
            for message in self._consumer.arrived():
                await self._arrived(message)

    async def _wait_for_space(self) -> None:
        """Until space_freed(). Replies that other brokers send meanwhile are taken in, or their time would run out."""
        self._space.clear()
        while self._wanted() <= 0 and not self._is_paused:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LATE_POPS_S if self._consumer.pending_count else None):
                    await self._space.wait()
                    self._space.clear()
            for message in self._consumer.arrived():
                await self._arrived(message)

    async def _arrived(self, message: PoppedMessage) -> None:
        delivery = Delivery(message, time.monotonic() + self._invisible_s / 2)
        self._held.add(delivery)
        if self._is_paused:
            self.settle(delivery, Verdict.RETURN)
        elif await self._accept(delivery):
            with self._lock:
                self._ready.append(delivery)
            self._notify()

    async def _accept(self, delivery: Delivery) -> bool:
        """Decode the envelope of a new delivery. False: it is settled, and take() does not return it."""
        return True

    # what becomes of held messages

    async def _keep_held(self) -> None:
        """Renew taken deliveries at half of their invisible time, and return those that the worker does not take."""
        while True:
            await asyncio.sleep(self._invisible_s / PASSES)
            now_s = time.monotonic()
            waiting = [delivery for delivery in self._held if delivery.renew_at_s <= now_s]
            for delivery in [delivery for delivery in self._held if delivery.forget_at_s <= now_s]:
                if delivery.verdict is None:
                    self._drop(delivery)
            with self._lock:
                unused = {delivery for delivery in self._ready if delivery.renew_at_s <= now_s}
                for delivery in unused:
                    self._ready.remove(delivery)
            for delivery in unused:
                self.settle(delivery, Verdict.RETURN)
            await asyncio.gather(
                *(
                    self._renew(delivery)
                    for delivery in waiting
                    if delivery not in unused and not delivery.is_busy and not delivery.is_lost
                )
            )

    async def _renew(self, delivery: Delivery) -> None:
        if delivery not in self._held:
            return
        delivery.is_busy = True
        try:
            await self._consumer.change_invisible(delivery.message, self._invisible_s)
            if delivery.forget_at_s == math.inf:  # renew_no_more() may have been called meanwhile
                delivery.renew_at_s = time.monotonic() + self._invisible_s / 2
        except RemoteError as error:
            if error.code == ResponseCode.NO_MESSAGE:
                delivery.is_lost = True
                log.warning(
                    "queue %s: %s was redelivered while it was worked on: %s",
                    self.topic,
                    delivery.message,
                    error,
                )
            else:
                log.warning("queue %s: %s is not renewed yet: %s", self.topic, delivery.message, error)
        except AerobeeError as error:
            log.warning("queue %s: %s is not renewed yet: %s", self.topic, delivery.message, error)
        finally:
            delivery.is_busy = False
            if delivery.verdict is not None:
                self._decided[delivery] = None
                self._has_decided.set()

    async def _settle_decided(self) -> None:
        pause_s = PAUSE_FIRST_S
        while True:
            await self._has_decided.wait()
            self._has_decided.clear()
            batch = list(self._decided)
            self._decided.clear()
            for delivery in batch:
                delivery.is_busy = True
            failed = await self._settle_batch(batch)
            for delivery in failed:
                delivery.is_busy = False
            if not failed:
                pause_s = PAUSE_FIRST_S
                continue
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
            # A renewal that began during the pause decides for itself when it ends.
            self._decided |= dict.fromkeys(delivery for delivery in failed if not delivery.is_busy)
            self._has_decided.set()

    async def _settle_batch(self, batch: Sequence[Delivery]) -> list[Delivery]:
        """Send the verdicts; returns those that should be sent again."""
        acks = [delivery for delivery in batch if delivery.verdict is Verdict.ACK]
        others = [delivery for delivery in batch if delivery.verdict is not Verdict.ACK]
        if len(acks) > 1:
            try:
                await self._consumer.ack_all(delivery.message for delivery in acks)
            except AerobeeError as error:
                log.debug("queue %s: a batch of acknowledgements is sent one by one: %s", self.topic, error)
            else:
                for delivery in acks:
                    self._drop(delivery)
                acks = []
        return [delivery for delivery in (*acks, *others) if not await self._settle_one(delivery)]

    async def _settle_one(self, delivery: Delivery) -> bool:
        """False when the broker should get the verdict again."""
        try:
            if delivery.verdict is Verdict.ACK:
                await self._consumer.ack(delivery.message)
            elif delivery.verdict is Verdict.DEAD_LETTER:
                await self._consumer.dead_letter(delivery.message, delivery.reason)
            else:
                counts = delivery.verdict is Verdict.REQUEUE
                after_s = delivery.after_s if counts else RETURN_AFTER_S
                await self._consumer.change_invisible(delivery.message, after_s, count_try=counts)
        except RemoteError as error:
            if error.code != ResponseCode.NO_MESSAGE and error.retriable:
                return False
            verdict = delivery.verdict.value if delivery.verdict is not None else ""
            log.warning("queue %s: %s is not %s: %s", self.topic, delivery.message, verdict, error)
        except AerobeeError as error:
            if error.retriable:
                return False
            log.warning("queue %s: a verdict on %s is lost: %s", self.topic, delivery.message, error)
        self._drop(delivery)
        return True

    def _drop(self, delivery: Delivery) -> None:
        self._held.discard(delivery)
        if not self._held:
            self._all_settled.set()
