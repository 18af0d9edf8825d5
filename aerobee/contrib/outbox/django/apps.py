"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig


class OutboxConfig(AppConfig):
    """App `aerobee_outbox`."""

    name = "aerobee.contrib.outbox.django"
    label = "aerobee_outbox"
    verbose_name = "Aerobee outbox"
    default_auto_field = "django.db.models.BigAutoField"
