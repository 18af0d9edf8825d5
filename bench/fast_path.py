"""CPU of one burst without sockets, layer by layer: what is Aerobee's own between read and write.

    python bench/fast_path.py [--rounds 20] [--shapes send-64,pull-32] [--backends python,native] [--profile] [--access]

For each shape the same bytes are given to Backend.burst, to FastPath.burst (with statistics and offsets) and to
Connection.data_received (with its write into nothing). Microseconds of CPU a message, the least of the rounds, which
a busy machine disturbs little. --profile prints cProfile's view instead. --access: Backend.burst without and with access control,
interleaved round by round, the frames of the second signed by a user with permissions.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import os
import pstats
import time
from collections.abc import Callable
from typing import Any, cast

from bursts import GROUP, PEER, STORE, STORED, TOPIC, NoTransport, bursts, send

from aerobee.access.config import AccessConfig
from aerobee.access.gate import Gate
from aerobee.access.keepers import UserKeeper
from aerobee.access.policies import acl_from_info
from aerobee.access.users import MemoryTable, User, Users
from aerobee.broker.fastpath.access import FrameAccess
from aerobee.broker.fastpath.choice import NATIVE, PYTHON, VARIABLE
from aerobee.broker.fastpath.fast_path import FastPath
from aerobee.broker.fastpath.seam import Backend
from aerobee.clock import SystemClock
from aerobee.message import pack_host
from aerobee.remoting.connection import Connection, Endpoint
from aerobee.remoting.signature import Credentials
from aerobee.testing import LocalCluster

KEYS = Credentials("alice", "alicesecret")
SECONDS = 0.05  # of one round


def signed(burst: bytes) -> bytes:
    """The same frames with a user's signature."""
    out, at = [], 0
    while at < len(burst):
        end = at + 4 + int.from_bytes(burst[at : at + 4], "big")
        out.append(KEYS.sign_frame(burst[at:end]))
        at = end
    return b"".join(out)


def guarded_backend(joint: FastPath) -> Backend:
    """Another backend at the same store, which asks each frame for a signature."""
    users = Users(MemoryTable(), MemoryTable())
    users.put(User(KEYS.access_key, KEYS.secret_key))
    entries = [
        {"resource": resource, "actions": ["Pub", "Sub"], "decision": "Allow"}
        for resource in (f"Topic:{TOPIC}", f"Group:{GROUP}")
    ]
    users.put_acl(acl_from_info({"subject": "User:alice", "policies": [{"entries": entries}]}))
    first = '{"username":"root","password":"rootsecret"}'
    config = AccessConfig(
        authentication_enabled=True, authorization_enabled=True, init_authentication_user=first
    )
    gate = Gate(keeper=UserKeeper(users, config, lambda: "DefaultCluster"), admin_open=False)
    before, joint._access = joint._access, FrameAccess(gate)
    try:
        return joint._make_backend()
    finally:
        joint._access = before


SHAPES = ("send-64", "send-1k", "send-1", "batch-64", "pull-32")


def least(serve: Callable[[bytes], object], given: list[bytes], messages: int, rounds: int) -> float:
    """CPU microseconds a message in the best round."""
    best = 1e9
    for _ in range(rounds):
        count, began = 0, time.thread_time()
        while (spent := time.thread_time() - began) < SECONDS:
            for burst in given[:64]:
                serve(burst)
            count += len(given[:64]) * messages
            given = given[64:] + given[:64]
        best = min(best, spent / count * 1e6)
    return best


async def measure(
    name: str, shapes: list[str], rounds: int, profile: bool, access: bool
) -> dict[str, list[float]]:
    """Shape -> the least of each layer, with `access` of the backend without and with; with `profile` nothing but what is
    printed."""
    os.environ[VARIABLE] = name
    found: dict[str, list[float]] = {}
    # The loop runs only between shapes: that is no overload.
    busy = {"wait_time_mills_in_send_queue": 1 << 30}
    async with LocalCluster(store_config=STORE, broker_config=busy, clock=SystemClock()) as cluster:
        await cluster.create_topic(TOPIC, queues=4)
        broker = cluster.broker()
        joint = broker.fast_path  # what RemotingServer calls
        backend = joint._backend
        connection = Connection(Endpoint({}, burst=joint.burst))
        connection.connection_made(NoTransport())
        host, now_ms = pack_host(*PEER), cluster.clock.now_ms()
        async with cluster.admin() as admin:
            await admin.create_group(GROUP)
        for number in range(STORED // 64):
            connection.data_received(b"".join(send(64 * number + each) for each in range(64)))
        replies = cast(Any, connection)._out  # written, but for data_received never sent: not to be piled up

        def serve_jointly(data: bytes) -> None:
            joint.burst(connection, data, 0)
            replies.clear()

        steps: tuple[Callable[[bytes], object], ...] = (
            lambda data: backend.burst(data, 0, host, now_ms, True, True),
            serve_jointly,
            connection.data_received,
        )
        for shape in shapes:
            given, messages = bursts(shape)
            first = backend.burst(given[0], 0, host, now_ms, True, True)
            if first.is_slow or first.used < len(given[0]):
                raise SystemExit(f"{shape} is not served by the {name} fast path")
            if access:
                given = given[:64]
                guarded, with_keys = guarded_backend(joint), [signed(burst) for burst in given]
                shown = guarded.burst(with_keys[0], 0, host, now_ms, True, True, PEER[0])
                if shown.is_slow or shown.used < len(with_keys[0]):
                    raise SystemExit(f"{shape} with access control is not served by the {name} fast path")
                ways: list[tuple[Callable[[bytes], object], list[bytes]]] = [
                    (steps[0], given),
                    (lambda data: guarded.burst(data, 0, host, now_ms, True, True, PEER[0]), with_keys),  # noqa: B023
                ]
                turns = [[least(serve, bursts, messages, 1) for serve, bursts in ways] for _ in range(rounds)]
                found[shape] = [min(each) for each in zip(*turns, strict=True)]
                found[shape].append(found[shape][1] - found[shape][0])
                continue
            if profile:
                profiler = cProfile.Profile()
                profiler.enable()
                least(steps[2], given, messages, 4)
                profiler.disable()
                pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
                continue
            found[shape] = [least(step, given, messages, rounds) for step in steps]
            await asyncio.sleep(0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--backends", default=f"{PYTHON},{NATIVE}")
    parser.add_argument("--profile", action="store_true", help="cProfile instead of figures")
    parser.add_argument("--access", action="store_true", help="without and with access control")
    options = parser.parse_args()
    layers = "Backend.burst | FastPath.burst | Connection.data_received"
    if options.access:
        layers = "Backend.burst | with access control | difference"
    print(f"| backend | shape | {layers} |\n|---|---|---|---|---|")
    for name in options.backends.split(","):
        found = asyncio.run(
            measure(name, options.shapes.split(","), options.rounds, options.profile, options.access)
        )
        for shape, figures in found.items():
            print(
                f"| {name} | {shape} | " + " | ".join(f"{figure:.2f}" for figure in figures) + " |",
                flush=True,
            )


if __name__ == "__main__":
    main()
