"""The rules of registration, death and routes; the time is an argument, nothing waits."""

from __future__ import annotations

from aerobee.nameserver.route_table import (
    BROKER_TIMEOUT_MS,
    BrokerIdentity,
    Registration,
    RouteTable,
    TopicQueues,
)
from aerobee.remoting.body.data_version import DataVersion

RW = TopicQueues(4, 4, 6)
TWO_TOPICS = {"orders": RW, "TBW102": TopicQueues(8, 8, 7)}


def registration(
    broker_id: int = 0,
    address: str | None = None,
    *,
    name: str = "broker-a",
    cluster: str = "C",
    topics: dict[str, TopicQueues] | None = None,
    version: DataVersion | None = None,
    acting: bool | None = False,
    timeout_ms: int | None = None,
    **more: object,
) -> Registration:
    address = address or f"10.0.0.{broker_id + 1}:10911"
    return Registration(
        identity=BrokerIdentity(cluster, name, address, broker_id),
        ha_address=address.replace("10911", "10912"),
        heartbeat_timeout_ms=timeout_ms,
        enable_acting_master=acting,
        topics=TWO_TOPICS if topics is None else topics,
        version=version or DataVersion(0, 1, 0),
        **more,  # type: ignore[arg-type]
    )


def addresses(table: RouteTable, topic: str = "orders", **options: object) -> dict[int, str]:
    route = table.route(topic, **options)  # type: ignore[arg-type]
    assert route is not None
    return dict(route.groups[0].addresses)


def perm(table: RouteTable, topic: str = "orders") -> int:
    return table.topics[topic]["broker-a"].perm


def test_a_registered_broker_is_in_the_route_of_its_topics() -> None:
    table = RouteTable()
    assert table.register(registration(), now_ms=0).accepted
    route = table.route("orders")
    assert route is not None
    assert route.queues == (("broker-a", RW),)
    assert addresses(table) == {0: "10.0.0.1:10911"}
    assert table.clusters == {"C": {"broker-a": None}}
    assert table.route("unknown") is None


def test_a_slave_learns_the_master_and_its_replication_address() -> None:
    table = RouteTable()
    table.register(registration(0), now_ms=0)
    result = table.register(registration(1), now_ms=0)
    assert (result.master_address, result.ha_address) == ("10.0.0.1:10911", "10.0.0.1:10912")
    assert table.register(registration(0), now_ms=0).master_address == ""
    assert addresses(table) == {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}


def test_topics_of_a_slave_are_not_taken_while_there_is_a_master() -> None:
    table = RouteTable()
    table.register(registration(0), now_ms=0)
    table.register(registration(1, topics={**TWO_TOPICS, "only-here": RW}), now_ms=0)
    assert table.route("only-here") is None


def test_a_slave_that_became_master_leaves_its_old_id() -> None:
    table = RouteTable()
    table.register(registration(0), now_ms=0)
    table.register(registration(1), now_ms=0)
    table.unregister(registration(0).identity)
    table.register(registration(0, "10.0.0.2:10911"), now_ms=0)
    assert addresses(table) == {0: "10.0.0.2:10911"}


def test_a_deposed_master_does_not_take_the_id_back() -> None:
    table = RouteTable()
    table.register(registration(0, "10.0.0.2:10911", version=DataVersion(2, 1, 1)), now_ms=0)
    result = table.register(registration(0, "10.0.0.1:10911", version=DataVersion(1, 9, 9)), now_ms=0)
    assert result.accepted
    assert result.master_address == ""
    assert addresses(table) == {0: "10.0.0.2:10911"}
    assert table.version_of("C", "10.0.0.1:10911") is None


def test_an_incremental_update_of_an_unknown_broker_is_refused() -> None:
    table = RouteTable()
    assert not table.register(registration(topics={"orders": RW}), now_ms=0).accepted
    assert table.groups == {}
    assert table.clusters == {}
    table.register(registration(), now_ms=0)
    assert table.register(registration(topics={"new": RW}, version=DataVersion(0, 2, 1)), now_ms=0).accepted
    assert set(table.topics) == {"orders", "TBW102", "new"}


def test_a_registration_without_a_body_counts_as_a_sign_of_life_and_resets_the_version() -> None:
    table = RouteTable()
    table.register(registration(), now_ms=0)
    table.register(registration(topics={}, version=DataVersion()), now_ms=5)
    assert table.version_of("C", "10.0.0.1:10911") == DataVersion()
    assert perm(table) == 6


def test_topics_change_only_when_the_data_version_does() -> None:
    table = RouteTable()
    table.register(registration(), now_ms=0)
    read_only = {"orders": TopicQueues(4, 4, 4), "TBW102": RW}
    table.register(registration(topics=read_only), now_ms=0)
    assert perm(table) == 6
    table.register(registration(topics=read_only, version=DataVersion(0, 1, 1)), now_ms=0)
    assert perm(table) == 4


def test_a_wiped_write_permission_holds_until_the_data_version_changes() -> None:
    table = RouteTable()
    table.register(registration(), now_ms=0)
    assert table.wipe_write_perm("broker-a") == 2
    table.register(registration(), now_ms=0)
    assert (perm(table), perm(table, "TBW102")) == (4, 5)
    assert table.add_write_perm("broker-a") == 2
    assert (perm(table), perm(table, "TBW102")) == (6, 6)
    assert table.wipe_write_perm("absent") == 0
    table.register(registration(version=DataVersion(0, 2, 1)), now_ms=0)
    assert perm(table, "TBW102") == 7


def test_a_deleted_topic_stays_away_unless_a_broker_registers_it_again() -> None:
    table = RouteTable()
    table.register(registration(), now_ms=0)
    table.delete_topic("orders", "C")
    without = {"TBW102": TWO_TOPICS["TBW102"], "other": RW}
    table.register(registration(topics=without, version=DataVersion(0, 2, 1)), now_ms=0)
    assert table.route("orders") is None
    table.register(registration(version=DataVersion(0, 2, 1)), now_ms=0)
    assert table.route("orders") is not None


def test_deleting_a_topic_of_one_cluster_leaves_the_others() -> None:
    table = RouteTable()
    table.register(registration(), now_ms=0)
    table.register(registration(name="broker-b", cluster="D", address="10.0.1.1:10911"), now_ms=0)
    table.delete_topic("orders", "C")
    assert set(table.topics["orders"]) == {"broker-b"}
    table.delete_topic("orders", "no such cluster")
    table.delete_topic("no such topic")
    assert set(table.topics["orders"]) == {"broker-b"}
    table.delete_topic("orders")
    assert "orders" not in table.topics


def test_topics_missing_from_a_body_are_kept_unless_asked_otherwise() -> None:
    table = RouteTable()
    table.register(registration(), now_ms=0)
    fewer = {"TBW102": RW, "other": RW}
    table.register(registration(topics=fewer, version=DataVersion(0, 2, 1)), now_ms=0)
    assert "orders" in table.topics
    one = {"newest": RW}
    table.register(
        registration(topics=one, version=DataVersion(0, 3, 2)), now_ms=0, delete_missing_topics=True
    )
    assert "orders" in table.topics
    table.register(
        registration(topics=fewer, version=DataVersion(0, 3, 2)), now_ms=0, delete_missing_topics=True
    )
    assert set(table.topics) == {"TBW102", "other"}


def test_the_last_broker_takes_its_cluster_and_topics_with_it() -> None:
    table = RouteTable()
    table.register(registration(0), now_ms=0)
    table.register(registration(1), now_ms=0)
    table.unregister(registration(0).identity)
    assert addresses(table) == {1: "10.0.0.2:10911"}
    table.unregister(registration(1).identity)
    assert (table.topics, table.groups, table.clusters, table.live) == ({}, {}, {}, {})
    assert table.unregister(registration(1).identity) == ()


def test_a_broker_expires_after_two_minutes_or_its_own_timeout() -> None:
    table = RouteTable()
    table.register(registration(0), now_ms=0)
    table.register(registration(1, timeout_ms=10_000), now_ms=0)
    assert table.expired(now_ms=10_000) == []
    assert [live.identity.broker_id for live in table.expired(now_ms=10_001)] == [1]
    assert table.heartbeat("C", "10.0.0.2:10911", now_ms=10_001)
    assert table.expired(now_ms=BROKER_TIMEOUT_MS)[0].identity.broker_id == 1
    assert len(table.expired(now_ms=BROKER_TIMEOUT_MS + 1)) == 2
    assert not table.heartbeat("C", "10.9.9.9:1", now_ms=0)


def test_a_closed_connection_takes_the_brokers_that_registered_last_through_it() -> None:
    table = RouteTable()
    table.register(registration(), now_ms=0, connection="old")
    table.register(registration(), now_ms=0, connection="new")
    table.connection_closed("old")
    assert table.route("orders") is not None
    table.connection_closed("new")
    assert table.route("orders") is None


def test_an_acting_master_is_shown_as_id_0_and_read_only() -> None:
    table = RouteTable()
    table.register(registration(0, acting=True), now_ms=0)
    table.register(registration(1, acting=True), now_ms=0)
    table.register(registration(2, acting=True), now_ms=0)
    table.unregister(registration(0).identity)
    assert perm(table) == 4
    assert addresses(table) == {1: "10.0.0.2:10911", 2: "10.0.0.3:10911"}
    assert addresses(table, support_acting_master=True) == {0: "10.0.0.2:10911", 2: "10.0.0.3:10911"}
    # The prime slave's own registration does not bring the write bit back.
    table.register(registration(1, acting=True, version=DataVersion(0, 9, 9)), now_ms=0)
    assert perm(table) == 4
    table.register(registration(0, acting=True), now_ms=0)
    assert perm(table) == 6
    assert addresses(table, support_acting_master=True)[0] == "10.0.0.1:10911"


def test_the_topic_by_which_brokers_learn_their_group_is_never_rewritten() -> None:
    table = RouteTable()
    sync_topic = "rmq_sys_SYNC_BROKER_MEMBER_broker-a"
    topics = {**TWO_TOPICS, sync_topic: TopicQueues(1, 1, 1)}
    table.register(registration(1, acting=True, topics=topics), now_ms=0)
    assert addresses(table, sync_topic, support_acting_master=True) == {1: "10.0.0.2:10911"}
    assert addresses(table, support_acting_master=True) == {0: "10.0.0.2:10911"}


def test_members_are_told_when_the_smallest_id_changes() -> None:
    table = RouteTable()
    table.register(registration(0, acting=True), now_ms=0)
    table.register(registration(1, acting=True), now_ms=0)
    (change,) = table.unregister(registration(0).identity)
    assert change.recipients == ("10.0.0.2:10911",)
    assert (change.min_broker_id, change.min_broker_address) == (1, "10.0.0.2:10911")
    assert (change.offline_address, change.ha_address) == ("10.0.0.1:10911", None)
    (change,) = table.register(registration(0, acting=True), now_ms=0).changes
    assert change.recipients == ("10.0.0.2:10911",)
    assert (change.min_broker_id, change.ha_address) == (0, "10.0.0.1:10912")
    assert table.unregister(registration(1).identity) == ()


def test_groups_without_acting_master_are_not_told() -> None:
    table = RouteTable()
    table.register(registration(0), now_ms=0)
    table.register(registration(1), now_ms=0)
    assert table.unregister(registration(0).identity) == ()
    assert perm(table) == 6


def test_each_asker_sees_the_addresses_of_its_own_listener() -> None:
    table = RouteTable()
    named = {"external": "mq.example.org:30911"}
    table.register(registration(0, listener_addresses=named), now_ms=0)
    table.register(registration(1), now_ms=0)
    assert addresses(table, listener="external") == {0: "mq.example.org:30911", 1: "10.0.0.2:10911"}
    assert addresses(table, listener="internal")[0] == "10.0.0.1:10911"
    assert table.group_views(listener="external")[0].addresses[0] == "mq.example.org:30911"


def test_topics_are_listed_by_cluster_and_by_unit_flags() -> None:
    table = RouteTable()
    topics = {
        "plain": RW,
        "unit": TopicQueues(1, 1, 6, 1),
        "unit-sub": TopicQueues(1, 1, 6, 3),
        "sub": TopicQueues(1, 1, 6, 2),
    }
    table.register(registration(topics=topics), now_ms=0)
    assert table.topics_of_cluster("C") == list(topics)
    assert table.topics_of_cluster("D") == []
    assert table.topics_with_flags(unit=True, unit_sub=None) == ["unit", "unit-sub"]
    assert table.topics_with_flags(unit=None, unit_sub=True) == ["unit-sub", "sub"]
    assert table.topics_with_flags(unit=False, unit_sub=True) == ["sub"]


def test_a_topic_is_added_by_hand_only_for_brokers_that_are_known() -> None:
    table = RouteTable()
    table.register(registration(), now_ms=0)
    assert table.register_topic("made", {"broker-a": RW, "absent": RW}) == ["absent"]
    assert table.route("made") is None
    assert table.register_topic("made", {"broker-a": RW}) == []
    assert table.route("made") is not None
    assert table.register_topic("empty", {}) == []
    assert table.route("empty") is None


def test_filter_servers_come_with_the_route_of_their_broker() -> None:
    table = RouteTable()
    table.register(registration(filter_servers=("10.0.0.1:40000",)), now_ms=0)
    route = table.route("orders")
    assert route is not None
    assert route.filter_servers == {"10.0.0.1:10911": ("10.0.0.1:40000",)}
    table.register(registration(), now_ms=0)
    route = table.route("orders")
    assert route is not None
    assert route.filter_servers == {}
