"""A dockerd of this checkout's own for the tests of images and compose, with the images in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from docker import DockerClient

from tests.deploy.docker import DAEMON, IMAGE, ROOT, SPARK_IMAGE, client, run
from tests.interop.rocketmq import missing_pieces


@pytest.fixture(scope="session")
def dockerd(request: pytest.FixtureRequest) -> Iterator[DockerClient]:
    """A client of a dockerd in a separate network namespace, with the images built from this checkout.

    Spark's image is built only if a test of this run uses it.
    """
    run(ROOT / "scripts" / "make-image", IMAGE, timeout_s=3600)
    if any("daemon" in getattr(item, "fixturenames", ()) for item in request.session.items):
        run(ROOT / "scripts" / "make-image", "spark", SPARK_IMAGE, timeout_s=3600)
    run(DAEMON, "start")
    try:
        with contextlib.closing(client()) as found:
            assert found.images.get(IMAGE).id
            yield found
    finally:
        run(DAEMON, "stop")


@pytest.fixture(scope="session")
def daemon(dockerd: DockerClient) -> None:
    """The same daemon with Spark's image too, and RocketMQ's clients."""
    missing = missing_pieces()
    if missing:
        pytest.fail(f"run scripts/setup-interop first, it makes: {', '.join(missing)}")
