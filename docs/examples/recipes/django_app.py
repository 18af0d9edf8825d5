"""Django: one blocking producer a worker process, opened at its first use, and a send after the commit.

`python django_app.py runserver` starts it; a project has the same functions in its own modules.
"""

import atexit
import functools
import os
import sys

import django
from django.conf import settings
from django.core.management import execute_from_command_line
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from aerobee import Message, SyncProducer

if not settings.configured:
    settings.configure(
        ALLOWED_HOSTS=["*"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        ROOT_URLCONF=__name__,
        SECRET_KEY="only for this example",
    )
    django.setup()


@functools.cache
def producer() -> SyncProducer:
    """Opened after the server has forked its workers: connections and threads do not survive a fork."""
    opened = SyncProducer(os.environ.get("AEROBEE_NAMESRV_ADDR", "127.0.0.1:9876"), "web")
    opened.start()
    atexit.register(opened.close)
    return opened


def add_order(request: HttpRequest) -> HttpResponse:
    message = Message("web-orders", request.body)
    with transaction.atomic():
        # ... rows of the order ...
        # A crash between commit and send loses the message: the outbox closes this gap.
        transaction.on_commit(lambda: producer().send(message))
    return JsonResponse({"accepted": True})


urlpatterns = [path("orders", add_order)]

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
