"""The tables of the outbox as Django models. The columns are described in aerobee/contrib/outbox/row.py."""

from __future__ import annotations

from django.db import models

from aerobee.contrib.outbox.row import (
    ORDER_KEY_CHARS_MAX,
    SHARD_TABLE,
    TABLE,
    TAG_CHARS_MAX,
    TOPIC_CHARS_MAX,
)


class OutboxMessage(models.Model):
    """A message that was committed and is not sent yet."""

    id = models.BigAutoField(primary_key=True)
    shard = models.IntegerField()
    order_key = models.CharField(max_length=ORDER_KEY_CHARS_MAX, blank=True)
    dedup_key = models.CharField(max_length=64)
    topic = models.CharField(max_length=TOPIC_CHARS_MAX)
    body = models.BinaryField()
    tag = models.CharField(max_length=TAG_CHARS_MAX, blank=True)
    message_keys = models.TextField(blank=True)
    properties = models.TextField()
    attempts = models.IntegerField(default=0)
    last_error = models.TextField(blank=True)
    retry_at_ms = models.BigIntegerField(default=0)
    created_ms = models.BigIntegerField()

    class Meta:
        db_table = TABLE
        indexes = (models.Index(fields=("shard", "id"), name=f"{TABLE}_shard_id"),)
        verbose_name = "outbox message"

    def __str__(self) -> str:
        return f"{self.id} for {self.topic}"


class OutboxShard(models.Model):
    """What one relay sends at a time."""

    shard = models.IntegerField(primary_key=True)
    owner = models.CharField(max_length=64, blank=True)
    lease_until_ms = models.BigIntegerField(default=0)

    class Meta:
        db_table = SHARD_TABLE

    def __str__(self) -> str:
        return f"shard {self.shard}"
