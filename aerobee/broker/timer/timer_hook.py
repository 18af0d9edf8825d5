"""The put hook of timer messages: refuses them, or rewrites them for the timer topic (HookUtils.handleTimerMessage).

A message with TIMER_DELAY_SEC, TIMER_DELAY_MS or TIMER_DELIVER_MS goes to queue 0 of rmq_sys_wheel_timer; REAL_TOPIC
and REAL_QID say where it belongs, TIMER_OUT_MS to which slot of the wheel. A delay level wins over all three. A message
that is due already is stored unchanged.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from aerobee.broker.send.delay_level import delay_level, replaced
from aerobee.broker.send.timer_properties import requested_time, slot_time
from aerobee.clock import Clock
from aerobee.errors import RemoteError
from aerobee.message import TRANSACTION_COMMIT, TRANSACTION_MASK
from aerobee.property_names import (
    DELAY,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_DELAYS,
    TIMER_DELETE_KEY,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
)
from aerobee.remoting.codes import ResponseCode
from aerobee.store.files.config import StoreConfig
from aerobee.store.log.stored_message import StoredMessage
from aerobee.system_names import HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC

NO_LIMIT = 2**31 - 1  # of messages in a slot
_NOT_FOR_THE_TIMER = frozenset({WHEEL_TIMER_TOPIC, HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC})


class TimerHook:
    """The put hook. The broker calls it with each message of a client before it stores the message."""

    def __init__(
        self,
        *,
        config: Callable[[], StoreConfig],
        clock: Clock,
        count_in_slot: Callable[[int], int],
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`count_in_slot` tells how many messages wait in the slot of a time, `chance` is a number below 1."""
        self._config = config
        self._clock = clock
        self._count_in_slot = count_in_slot
        self._chance = chance

    def __call__(self, message: StoredMessage, properties: dict[str, str]) -> StoredMessage:
        """Raises RemoteError: 13 for an invalid time, 1 when timers are off or the slot is full."""
        if not any(name in properties for name in TIMER_DELAYS):
            if TIMER_DELETE_KEY in properties and message.topic not in _NOT_FOR_THE_TIMER:
                raise _illegal(
                    f"{TIMER_DELETE_KEY} needs a time: {TIMER_DELIVER_MS} of the message to cancel"
                )
            return message
        # A message that was delayed before, for example one that a consumer gave back, is not delayed again.
        if TIMER_OUT_MS in properties or message.topic in _NOT_FOR_THE_TIMER:
            return message
        if message.sys_flag & TRANSACTION_MASK not in (0, TRANSACTION_COMMIT):
            return message
        config = self._config()
        if DELAY in properties and delay_level(properties, max(1, len(config.delay_levels_ms()))):
            for name in TIMER_DELAYS:
                properties.pop(name, None)
            return replaced(message, message.topic, message.queue_id, properties)
        if not config.timer_wheel_enable:
            raise RemoteError(
                ResponseCode.SYSTEM_ERROR,
                "timer message is not enabled: set timerWheelEnable=true at the broker, or use a delay level (DELAY)",
            )
        now = self._clock.now_ms()
        try:
            deliver_ms = requested_time(properties, now)
        except ValueError as error:
            raise _illegal(str(error)) from error
        assert deliver_ms is not None
        max_delay_ms = config.timer_max_delay_sec * 1000
        if deliver_ms - now > max_delay_ms:
            raise _illegal(
                f"the delay time should not be bigger than the max delay {max_delay_ms}ms (timerMaxDelaySec), "
                f"this one is {deliver_ms - now}ms"
            )
        if deliver_ms <= now:
            if TIMER_DELETE_KEY in properties:
                raise _illegal("if set del msg, the delay time should be bigger than the current time")
            return message
        out_ms = slot_time(deliver_ms, config.timer_precision_ms)
        self._check_room(config, out_ms)
        properties[TIMER_OUT_MS] = str(out_ms)
        properties[REAL_TOPIC] = message.topic
        properties[REAL_QUEUE_ID] = str(message.queue_id)
        return replaced(message, WHEEL_TIMER_TOPIC, 0, properties)

    def _check_room(self, config: StoreConfig, out_ms: int) -> None:
        """Refuse some of the messages for a slot above its number, and all above twice of it."""
        limit = config.timer_congest_num_each_slot
        if limit == NO_LIMIT:
            return
        count = self._count_in_slot(out_ms)
        if count > limit and self._chance() < (count - limit) / limit:
            raise RemoteError(
                ResponseCode.SYSTEM_ERROR,
                f"timer message is under flow control: {count} messages are due in the slot of {out_ms}, more than "
                f"timerCongestNumEachSlot {limit}; try again, or ask for another second",
            )


def _illegal(reason: str) -> RemoteError:
    return RemoteError(ResponseCode.MESSAGE_ILLEGAL, f"timer message illegal, {reason}")
