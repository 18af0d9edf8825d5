"""`manage.py aerobee_outbox_relay`: send the rows of the outbox into their topics."""

from __future__ import annotations

import asyncio
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS, connections

from aerobee.contrib.outbox.django.database_url import database_url
from aerobee.contrib.outbox.relay import BATCH_ROWS, POLL_S
from aerobee.contrib.outbox.relay_process import run_relay
from aerobee.errors import AerobeeError
from aerobee.host_port import NAMESERVER_DEFAULT


class Command(BaseCommand):
    """Runs one relay until SIGTERM or Ctrl-C; several relays share the work."""

    help = "Send the messages of the outbox into their topics."

    def add_arguments(self, parser: Any) -> None:
        """The options."""
        parser.add_argument("--nameserver", default=NAMESERVER_DEFAULT, help="NameServers, separated by ';'.")
        parser.add_argument(
            "--database", default=DEFAULT_DB_ALIAS, help="Database of the settings that has the outbox."
        )
        parser.add_argument(
            "--batch", type=int, default=BATCH_ROWS, help="Maximum number of rows of one transaction."
        )
        parser.add_argument(
            "--poll", type=float, default=POLL_S, help="Seconds between two looks at an empty table."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the relay."""
        settings = connections[options["database"]].settings_dict
        try:
            asyncio.run(
                run_relay(
                    database_url(settings).render_as_string(hide_password=False),
                    options["nameserver"],
                    creates_tables=False,
                    batch_rows=options["batch"],
                    poll_s=options["poll"],
                )
            )
        except AerobeeError as error:
            raise CommandError(str(error)) from error
