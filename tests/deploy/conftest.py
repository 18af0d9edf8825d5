"""A dockerd of this checkout's own for the tests of images and compose, with the images in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.deploy.docker import DAEMON, IMAGE, ROOT, SPARK_IMAGE, docker, run
from tests.interop.rocketmq import missing_pieces


@pytest.fixture(scope="session")
def daemon() -> Iterator[None]:
    """dockerd in a separate network namespace, with the images built from this checkout."""
    missing = missing_pieces()
    if missing:
        pytest.fail(f"run scripts/setup-interop first, it makes: {', '.join(missing)}")
    run(ROOT / "scripts" / "make-image", IMAGE, timeout_s=3600)
    run(ROOT / "scripts" / "make-image", "spark", SPARK_IMAGE, timeout_s=3600)
    run(DAEMON, "start")
    assert docker("image", "inspect", "-f", "{{.Id}}", IMAGE)
    try:
        yield
    finally:
        run(DAEMON, "stop")
