"""Pops that wait while their broker becomes master or slave: nothing is handed out before the log is read, and nothing waits at a slave."""

from __future__ import annotations

from aerobee.broker.state.role import Role
from aerobee.broker.state.unserved import STARTING
from aerobee.remoting.codes import ResponseCode
from aerobee.remoting.command import RemotingCommand
from tests.simulation.pop_world import GROUP, PLAIN, World

WAIT_MS = 15_000


class Replies:
    """A broker with a pop that waits, and the codes of what was answered."""

    def __init__(self) -> None:
        self.world = world = World(1)
        world.start(0)
        self.codes: list[int] = []
        answered = world.popped

        def popped(topic: str, reply: RemotingCommand) -> None:
            self.codes.append(reply.code)
            answered(topic, reply)

        world.popped = popped  # type: ignore[method-assign]
        world.pop(PLAIN, wait_ms=WAIT_MS)
        world.run_soon()
        assert self.codes == []

    def send(self) -> None:
        world = self.world
        while not any(known.topic == PLAIN for known in world.known.values()):
            world.send()
        world.flush()
        world.run_soon()


def test_a_pop_that_waits_gets_nothing_before_the_log_is_read() -> None:
    replies = Replies()
    feature = replies.world.pop_feature
    feature._parts.unserved.put([feature.name], STARTING)
    replies.send()
    assert replies.codes == [ResponseCode.SERVICE_NOT_AVAILABLE]
    assert not any(known.times for known in replies.world.known.values())
    assert all(feature._parts.offsets.query(GROUP, PLAIN, queue_id) in (None, 0) for queue_id in range(2))
    replies.world.let_go()


def test_pops_that_wait_are_answered_when_their_broker_becomes_a_slave() -> None:
    replies = Replies()
    feature = replies.world.pop_feature
    feature._parts.role.change(Role.SLAVE, "of the test", epoch=2)
    feature.resign()
    assert replies.codes == [ResponseCode.SYSTEM_ERROR]
    replies.world.let_go()
