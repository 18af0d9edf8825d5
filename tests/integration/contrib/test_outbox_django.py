"""The outbox as a Django app: migrations, transactions, the admin page and the relay command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.testing import ThreadedCluster
from tests.integration.databases import postgresql

ROOT = Path(__file__).parents[3]
SETTINGS = """
import os

SECRET_KEY = "of the test"
INSTALLED_APPS = [
    "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.messages",
    "django.contrib.sessions", "aerobee.contrib.outbox.django",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware", "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [{
    "BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
    "OPTIONS": {"context_processors": [
        "django.template.context_processors.request", "django.contrib.auth.context_processors.auth",
        "django.contrib.messages.context_processors.messages",
    ]},
}]
ROOT_URLCONF = "shop_urls"
ALLOWED_HOSTS = ["testserver"]
USE_TZ = True
port = os.environ.get("SHOP_PORT", "")
DATABASES = {"default": (
    {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "aerobee", "HOST": "127.0.0.1", "PORT": port}
    if port else {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["SHOP_FILE"]}
)}
"""
URLS = """
from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
"""
SHOP = """
import os

import django

django.setup()
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client

from aerobee.contrib.outbox.django.enqueue import enqueue
from aerobee.contrib.outbox.django.models import OutboxMessage, OutboxShard
from aerobee.errors import UsageError
from aerobee.message import Message

TOPIC = os.environ["SHOP_TOPIC"]
assert OutboxShard.objects.count() == 16
try:
    enqueue(Message(TOPIC, b"outside"))
except UsageError as error:
    assert "transaction.atomic()" in str(error)
else:
    raise AssertionError("enqueue() outside of a transaction")
for number in range(3):
    with transaction.atomic():
        enqueue(Message(TOPIC, b"%d" % number, tag="t", properties={"n": "v"}), key="k")
try:
    with transaction.atomic():
        enqueue(Message(TOPIC, b"rolled back"), key="k")
        raise LookupError
except LookupError:
    pass
assert OutboxMessage.objects.count() == 3
OutboxMessage.objects.filter(body=b"1").update(attempts=2, last_error="no route", retry_at_ms=9_999_999_999_999)
User.objects.create_superuser("root", "", "secret")
client = Client()
assert client.login(username="root", password="secret")
listed = client.get("/admin/aerobee_outbox/outboxmessage/?failed=yes").content.decode()
assert "no route" in listed and listed.count("action-select") >= 1
(failed,) = OutboxMessage.objects.filter(attempts=2)
shown = client.get(f"/admin/aerobee_outbox/outboxmessage/{failed.pk}/change/").content.decode()
assert "no route" in shown and TOPIC in shown
assert client.get("/admin/aerobee_outbox/outboxmessage/add/").status_code == 403
asked = {"action": "retry_now", "_selected_action": [str(failed.pk)]}
done = client.post("/admin/aerobee_outbox/outboxmessage/", asked, follow=True).content.decode()
assert "1 messages are retried" in done
assert OutboxMessage.objects.get(pk=failed.pk).retry_at_ms == 0
print("done")
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster(broker_config={"dedup_window_millis": 3_600_000}) as started:
        yield started


@pytest.fixture(params=["sqlite", "postgresql"])
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    pytest.importorskip("django")
    (tmp_path / "shop_settings.py").write_text(SETTINGS)
    (tmp_path / "shop_urls.py").write_text(URLS)
    (tmp_path / "shop.py").write_text(SHOP)
    found = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
        "DJANGO_SETTINGS_MODULE": "shop_settings",
        "SHOP_FILE": str(tmp_path / "shop.db"),
    }
    if request.param == "sqlite":
        yield found
        return
    with postgresql() as url:
        yield {**found, "SHOP_PORT": url.rsplit(":", 1)[1].split("/")[0]}


def run(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=environment["PYTHONPATH"].split(os.pathsep)[0],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_django_app_commits_and_the_command_sends(
    environment: dict[str, str], cluster: ThreadedCluster
) -> None:
    topic = "paid-" + ("postgresql" if "SHOP_PORT" in environment else "sqlite")
    environment["SHOP_TOPIC"] = topic
    cluster.create_topic(topic)
    run(environment, "-m", "django", "migrate", "-v0")
    assert "No changes" in run(environment, "-m", "django", "makemigrations", "--check", "--dry-run")
    assert run(environment, "shop.py") == "done\n"
    command = [
        sys.executable, "-m", "django", "aerobee_outbox_relay", "--nameserver", cluster.nameserver_address, "--poll", "0.1",
    ]  # fmt: skip
    relay = subprocess.Popen(command, env=environment)
    try:
        bodies = run(  # waits for the messages
            environment,
            "-m", "aerobee.ops", "consume", topic, "--from", "first", "--count", "3", "-n", cluster.nameserver_address,
        )  # fmt: skip
    finally:
        relay.terminate()
        assert relay.wait(120) == 0
    assert bodies.split() == ["0", "1", "2"]
