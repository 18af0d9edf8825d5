"""Waking a thread or an event loop."""

from __future__ import annotations

import select
import threading

from aerobee.contrib.wakeup import Wakeup


def readable(wakeup: Wakeup) -> bool:
    return bool(select.select([wakeup.fileno()], [], [], 0)[0])


def test_notification_before_the_wait_is_not_missed() -> None:
    wakeup = Wakeup()
    seen = wakeup.count
    wakeup.notify()
    assert wakeup.wait(seen, 0)
    assert not wakeup.wait(wakeup.count, 0)


def test_wait_ends_with_a_notification_of_another_thread() -> None:
    wakeup = Wakeup()
    thread = threading.Thread(target=wakeup.notify)
    seen = wakeup.count
    thread.start()
    assert wakeup.wait(seen, 30)
    thread.join()


def test_descriptor_is_readable_until_it_is_cleared() -> None:
    wakeup = Wakeup()
    assert not readable(wakeup)
    for _ in range(10_000):  # more than its buffer holds
        wakeup.notify()
    assert readable(wakeup)
    wakeup.clear()
    assert not readable(wakeup)
    wakeup.notify()
    assert readable(wakeup)
    wakeup.close()
    wakeup.notify()
