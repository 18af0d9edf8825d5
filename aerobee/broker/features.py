"""The features of a broker, in the order in which their put hooks see a message; delay levels come after them."""

from __future__ import annotations

from aerobee.broker.consumer.lock_calls import OrderlyLocks
from aerobee.broker.feature import BrokerParts, Feature
from aerobee.broker.filter.filter_feature import FilterFeature
from aerobee.broker.pop.pop_feature import Pop
from aerobee.broker.send.batch_queue import BatchQueues
from aerobee.broker.send.light_queue import LightQueues
from aerobee.broker.send.reply import RequestReply
from aerobee.broker.timer.timer_feature import Timers
from aerobee.broker.transaction.service import Transactions


def make_features(parts: BrokerParts) -> tuple[Feature, ...]:
    """Make every feature of one broker."""
    timers = Timers(parts)
    return (
        Transactions(parts, timers=timers),  # before all that look at delays: a half message has none
        timers,
        RequestReply(parts),
        OrderlyLocks(parts),
        FilterFeature(parts),
        BatchQueues(parts),
        LightQueues(parts),
        Pop(parts, timer=timers),
    )
