"""The features of a broker, in the order of their put hooks; delay levels come last."""

from __future__ import annotations

from dataclasses import replace

from aerobee.broker.consumer.lock_calls import FILE_NAME as LOCKS_FILE
from aerobee.broker.consumer.lock_calls import OrderlyLocks
from aerobee.broker.delay.delay_levels import DelayLevels
from aerobee.broker.fastpath.pop import PopHooks
from aerobee.broker.fastpath.seam import DelaySettings, TransactionSettings
from aerobee.broker.filter.filter_feature import FilterFeature
from aerobee.broker.lite.lite_feature import LiteTopics
from aerobee.broker.parts.parts import BrokerParts
from aerobee.broker.pop.pop_feature import Pop
from aerobee.broker.recurring.schedule_feature import RecurringSchedules
from aerobee.broker.send.batch_queue import BatchQueues
from aerobee.broker.send.duplicate_window import DuplicateWindow
from aerobee.broker.send.lmq import LmqFeature
from aerobee.broker.send.request_reply import RequestReply
from aerobee.broker.send.send_back_hooks import SendBackFastPath
from aerobee.broker.state.feature import Feature
from aerobee.broker.static_topic.mapping_cleaning import MappingCleaning
from aerobee.broker.timer.timer_feature import Timers
from aerobee.broker.transaction.service import Transactions


def make_features(parts: BrokerParts) -> tuple[Feature, ...]:
    """Create every feature of one broker."""
    timers = Timers(parts)
    first = (
        DuplicateWindow(
            duplicates=parts.duplicates, log_files=parts.store.log, live=parts.live, clock=parts.clock
        ),
        DelayLevels(parts.schedule, parts.store),
        Transactions(parts, timers=timers),  # before all features with delays: a half message has none
        timers,
        RequestReply(
            store=parts.store,
            writer=parts.writer,
            topics=parts.topics,
            producers=parts.producers,
            stats=parts.stats,
            live=parts.live,
            identity=parts.identity,
            role=parts.role,
            clock=parts.clock,
        ),
        OrderlyLocks(locks=parts.locks, file=parts.config_file(LOCKS_FILE), role=parts.role),
        _filters(parts),
        BatchQueues(topics=parts.topics, set_kind=parts.store.set_batch_topic),
        LmqFeature(parts.lmqs),
    )
    pop = Pop(parts, timer=timers)
    return (
        *first,
        pop,
        LiteTopics(parts, pop),
        RecurringSchedules(parts),
        MappingCleaning(
            mappings=parts.mappings,
            brokers=parts.brokers,
            identity=parts.identity,
            clock=parts.clock,
            hours=lambda: parts.store.config.delete_when,
            spawn=parts.spawn,
        ),
    )


def pop_of(features: tuple[Feature, ...]) -> Pop:
    """POP among them."""
    (pop,) = (feature for feature in features if isinstance(feature, Pop))
    return pop


def lite_of(features: tuple[Feature, ...]) -> LiteTopics:
    """Lite topics among them."""
    (lite,) = (feature for feature in features if isinstance(feature, LiteTopics))
    return lite


def fast_path_kinds(
    features: tuple[Feature, ...], parts: BrokerParts
) -> tuple[DelaySettings | None, TransactionSettings | None, PopHooks | None]:
    """Parts of the fast path other than sends and pulls."""
    delayed: DelaySettings | None = None
    transactions: TransactionSettings | None = None
    pops: PopHooks | None = None
    for feature in features:
        if isinstance(feature, Transactions):
            send_backs = SendBackFastPath(
                store=parts.store,
                topics=parts.topics,
                groups=parts.groups,
                stats=parts.stats,
                live=parts.live,
                role=parts.role,
            )
            delayed = replace(feature.delay_settings(), send_backs=send_backs)
            transactions = feature.transaction_settings()
        elif isinstance(feature, Pop):
            pops = feature.fast_path_hooks()
    return delayed, transactions, pops


def _filters(parts: BrokerParts) -> FilterFeature:
    """The filter table, which is notified of subscriptions and adds bits to queue entries with enableCalcFilterBitMap."""
    parts.consumers.on_subscriptions(parts.filters.subscribed)
    if parts.live.value.enable_calc_filter_bit_map and parts.store.config.enable_consume_queue_ext:
        parts.store.set_bitmap(parts.filters.bitmap)
    return FilterFeature(table=parts.filters, clock=parts.clock)
