"""Both backends store messages with a delay level or a time alike, and leave the same ones to the handlers."""

from __future__ import annotations

import json
import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.fastpath.choice import NATIVE, PYTHON, choose_backend
from aerobee.broker.fastpath.seam import DelaySettings
from aerobee.broker.transaction.fast_path_hooks import DelayFastPath
from aerobee.message import pack_host
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.system_names import SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC
from tests.fuzz.fastpath_bursts import ODD_VALUES, TOPICS, framed, mutated
from tests.fuzz.fastpath_counterparts import Counterpart
from tests.unit.broker.sending import send_frame

BURSTS = int(os.environ.get("AEROBEE_DELAYED_BURSTS", "1500"))
HOST = pack_host("10.0.0.1", 43_664)
NOW_MS = 1_700_000_000_000
LEVELS = ("1", "2", "18", "19", "0", "01", "-1", "", "x", "128", "129", "9" * 18, "9" * 19, "²")
TIMES = (
    "0", "1", "999", "1000", "1001", "5000", "007", "-5", "+5", "", "x", "²", "259200", "259201", "259200000", "259200001",
    str(NOW_MS), str(NOW_MS + 1), str(NOW_MS + 1000), str(NOW_MS + 259_200_000), str(NOW_MS + 259_200_001), "9" * 18, "9" * 19,
)  # fmt: skip
OTHERS = (
    ("KEYS", "k1  k2"), ("KEYS", "键"), ("TAGS", "TagA"), ("TAGS", "标签"), ("TAGS", ""), ("WAIT", "false"), ("colour", "grün"),
    ("TRAN_MSG", "true"), ("PGROUP", "PG"), ("REAL_TOPIC", "x"), ("TIMER_OUT_MS", "5"), ("TIMER_DEL_UNIQKEY", "U"),
    ("TIMER_ROLL_TIMES", "1"), ("UNIQ_KEY", "U-1"), ("UNIQ_KEY", "U2"), ("REAL_QID", "7"), ("long", "x" * 32_000),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    if choose_backend().name != NATIVE:
        pytest.skip("there is no native backend")
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


class World(Counterpart):
    """The parts around a backend that serves messages for later."""

    def __init__(self, path: Path, name: str, **settings: Any) -> None:
        super().__init__(path, name, **settings)
        self.clock.advance(NOW_MS / 1000 - self.clock.now_ms() / 1000)
        self.limits: tuple[int, int] | None = (1_000, 259_200_000)
        hooks = DelayFastPath(
            takes_delayed=lambda: True,
            appended=lambda *what: self.told.append(what),
            timer_appended=lambda: self.told.append(("timer",)),
            timer_limits=lambda: self.limits,
        )
        self.fast_path._delayed = DelaySettings(
            hooks=hooks,
            schedule_topic=TopicConfig(SCHEDULE_TOPIC, 18, 18),
            timer_topic=TopicConfig(WHEEL_TIMER_TOPIC, 1, 1),
            broker_name="broker-a",
            delays_ms=self.store.config.delay_levels_ms(),
        )
        self.fast_path._settings_changed()

    def serve(self, data: bytes) -> tuple[Any, ...]:
        """Serve a burst; return its answer, the notified listeners and the end of the log."""
        return self.burst(data, 0, HOST)

    def written(self) -> Iterator[tuple[str, object]]:
        """Everything but queues that were looked up and got nothing."""
        for what, value in self.everything():
            if not (what.startswith("queue") and isinstance(value, tuple) and value[1] == 0):
                yield what, value


def frame(rng: random.Random) -> bytes:
    pairs = [("UNIQ_KEY", f"U{rng.randrange(99)}"), ("WAIT", "true")]
    if rng.random() < 0.5:
        pairs.append(("DELAY", rng.choice(LEVELS[:3] if rng.random() < 0.7 else LEVELS)))
    else:
        names = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
        pairs.append((rng.choice(names), rng.choice(TIMES[1:7] if rng.random() < 0.5 else TIMES)))
    pairs += rng.sample(OTHERS, rng.choice((0, 0, 0, 1, 2)))
    if rng.random() < 0.05:
        pairs.append(("DELAY", "2"))
    rng.shuffle(pairs)
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
    if rng.random() < 0.1:
        text = text[:-1]
    if rng.random() < 0.05:
        text = mutated(rng, text.encode()).decode(errors="ignore")
    ext: dict[str, Any] = {
        "a": "PG", "b": rng.choice(TOPICS), "c": "TBW102", "d": "4", "e": rng.choice(("0", "1", "2", "3", "3", "4", "-1")), "f": rng.choice("0012"),
        "g": "1700000000000", "h": rng.choice("07"), "i": text, "j": rng.choice("003"), "k": "false", "m": "false",
    }  # fmt: skip
    if rng.random() < 0.15:
        ext[rng.choice(tuple(ext))] = rng.choice(ODD_VALUES)
    if rng.random() < 0.03:
        del ext[rng.choice(tuple(ext))]
    header = {
        "code": 310, "extFields": ext, "flag": rng.choice((0, 0, 0, 2, 1)), "language": "JAVA",
        "opaque": rng.choice((7, 2**31 - 1, -(2**31), rng.randrange(1 << 20))), "serializeTypeCurrentRPC": "JSON",
        "version": 513,
    }  # fmt: skip
    raw = json.dumps(header, ensure_ascii=rng.random() < 0.5, separators=(",", ":")).encode()
    if rng.random() < 0.05:
        raw = mutated(rng, raw)
    return framed(raw, rng.randbytes(rng.choice((0, 1, 128))))


def test_both_backends_agree_on_random_delayed_sends(tmp_path: Path) -> None:
    rng = random.Random(os.environ.get("AEROBEE_DELAYED_SEED", "7"))
    done = stored = 0
    while done < BURSTS:
        settings: dict[str, Any] = {"flush_disk_type": "SYNC_FLUSH"} if done % 1_000 else {}
        worlds = [World(tmp_path / f"{done}{name}", name, **settings) for name in (PYTHON, NATIVE)]
        for _ in range(min(500, BURSTS - done)):
            data = b"".join(frame(rng) for _ in range(rng.choice((1, 2, 8))))
            while data:
                answers = [world.serve(data) for world in worlds]
                assert answers[0] == answers[1], data
                used = answers[0][1]
                data = data[
                    used + 4 + int.from_bytes(data[used : used + 4], "big") :
                ]  # the next one is left out
            if rng.random() < 0.01:
                limits = rng.choice((None, (1_000, 259_200_000), (100, 5_000)))
                seconds = rng.choice((0.001, 0.999, 1.5))
                for world in worlds:
                    world.limits = limits
                    world.clock.advance(seconds)
            done += 1
        left, right = (dict(world.written()) for world in worlds)
        assert left.keys() == right.keys()
        for what, value in left.items():
            assert value == right[what], what
        stored += worlds[0].store.next_offset(WHEEL_TIMER_TOPIC, 0) + worlds[0].store.next_offset(
            SCHEDULE_TOPIC, 0
        )
        for world in worlds:
            world.close()
    assert stored > BURSTS // 4


@pytest.mark.parametrize("name", [PYTHON, NATIVE])
def test_a_message_that_is_left_to_the_handlers_opens_no_queue_of_the_broker(
    tmp_path: Path, name: str
) -> None:
    """A time that is too far, one that has passed and a level that there is not: their queues would stay empty."""
    world = World(tmp_path, name)
    for property_text in ("TIMER_DELAY_SEC\x01259201", "TIMER_DELIVER_MS\x015001", "DELAY\x0119"):
        data = send_frame(properties=f"UNIQ_KEY\x01U1\x02{property_text}\x02")
        assert world.serve(data)[1:3] == (0, True), "left to the handlers"
    assert {topic for topic, _ in world.store.queues}.isdisjoint((WHEEL_TIMER_TOPIC, SCHEDULE_TOPIC))
    assert world.serve(send_frame(properties="UNIQ_KEY\x01U1\x02DELAY\x012\x02"))[2] is False
    assert (SCHEDULE_TOPIC, 1) in world.store.queues
