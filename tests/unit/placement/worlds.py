"""Random clusters for the planner's tests."""

from __future__ import annotations

from hypothesis import strategies as st

from aerobee.placement.model import Broker, Load, Model, Topic

amounts = st.floats(min_value=0, max_value=1e6, allow_nan=False)


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Up to 6 brokers in up to 3 zones, some with a capacity, up to 8 topics of even or uneven queues."""
    count = draw(st.integers(1, 6))
    zones = draw(st.lists(st.sampled_from(["", "east", "west", "north"]), min_size=count, max_size=count))
    capacities = draw(
        st.lists(
            st.one_of(st.just(0.0), st.floats(min_value=1e4, max_value=1e7)), min_size=count, max_size=count
        )
    )
    brokers = tuple(
        Broker(name=f"broker-{number}", zone=zone, capacity=Load(bears, 0.0, bears * 10))
        for number, (zone, bears) in enumerate(zip(zones, capacities, strict=True))
    )
    names = [broker.name for broker in brokers]
    topics = []
    for number in range(draw(st.integers(0, 8))):
        homes = draw(st.lists(st.sampled_from(names), min_size=1, max_size=count, unique=True))
        counts = {home: draw(st.integers(1, 5)) for home in homes}
        rate = draw(amounts)
        is_even = draw(st.booleans())
        queues = {}
        for home, queue_count in counts.items():
            loads = []
            for _ in range(queue_count):
                part = rate if is_even else draw(amounts)
                loads.append(Load(part, part * 2, part * 3))
            queues[home] = tuple(loads)
        topics.append(
            Topic(
                name=f"topic-{number}",
                queues=queues,
                is_ordered=draw(st.booleans()) and draw(st.booleans()),
                is_sharded=draw(st.booleans()) and draw(st.booleans()),
                group_sizes=tuple(draw(st.lists(st.integers(0, 6), max_size=2))),
                pinned=draw(st.sampled_from(["", "", "", "static"])),
            )
        )
    return Model(brokers=brokers, topics=tuple(topics))
