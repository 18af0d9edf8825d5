"""POP consumers of the Java client."""

from __future__ import annotations

from typing import Any

from tests.interop.rocketmq import Driver


class JavaPops:
    """One Java push consumer that lets the broker assign queues."""

    def __init__(self, driver: Driver, **options: Any) -> None:
        self._driver, self.name = driver, driver.unique("pop-")
        driver.call("pop.start", name=self.name, **options)

    def __enter__(self) -> JavaPops:
        return self

    def __exit__(self, *_: object) -> None:
        self._driver.call("pop.stop", name=self.name)

    def received(self, count: int, timeout_s: float = 40.0) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._driver.call(
            "pop.received", name=self.name, count=count, timeout_ms=round(timeout_s * 1000)
        )
        return found


def use_pop(driver: Driver, namesrv: str, topic: str, group: str) -> None:
    out = driver.admin(
        namesrv, "setConsumeMode", "-c", "DefaultCluster", "-t", topic, "-g", group, "-m", "POP"
    )
    assert "success" in out.lower()
