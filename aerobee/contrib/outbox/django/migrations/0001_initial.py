"""The tables of the outbox, and the rows of its shards."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

from aerobee.contrib.outbox.row import SHARDS


def make_shards(apps: Any, schema_editor: Any) -> None:
    """Insert a row for each shard."""
    shard_model = apps.get_model("aerobee_outbox", "OutboxShard")
    shard_model.objects.using(schema_editor.connection.alias).bulk_create(
        shard_model(shard=shard, owner="", lease_until_ms=0) for shard in range(SHARDS)
    )


class Migration(migrations.Migration):
    """The first one."""

    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="OutboxMessage",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("shard", models.IntegerField()),
                ("order_key", models.CharField(blank=True, max_length=255)),
                ("dedup_key", models.CharField(max_length=64)),
                ("topic", models.CharField(max_length=127)),
                ("body", models.BinaryField()),
                ("tag", models.CharField(blank=True, max_length=255)),
                ("message_keys", models.TextField(blank=True)),
                ("properties", models.TextField()),
                ("attempts", models.IntegerField(default=0)),
                ("last_error", models.TextField(blank=True)),
                ("retry_at_ms", models.BigIntegerField(default=0)),
                ("created_ms", models.BigIntegerField()),
            ],
            options={
                "verbose_name": "outbox message",
                "db_table": "aerobee_outbox",
                "indexes": [models.Index(fields=("shard", "id"), name="aerobee_outbox_shard_id")],
            },
        ),
        migrations.CreateModel(
            name="OutboxShard",
            fields=[
                ("shard", models.IntegerField(primary_key=True, serialize=False)),
                ("owner", models.CharField(blank=True, max_length=64)),
                ("lease_until_ms", models.BigIntegerField(default=0)),
            ],
            options={"db_table": "aerobee_outbox_shard"},
        ),
        migrations.RunPython(make_shards, migrations.RunPython.noop),
    )
