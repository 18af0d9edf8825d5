"""The admin page of the outbox: what waits, what failed and why. Messages are retried or deleted there, not edited."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.contrib import admin

from aerobee.contrib.outbox.django.models import OutboxMessage

BODY_BYTES_SHOWN = 2_000


class FailedFilter(admin.SimpleListFilter):
    """Filters by the last try."""

    title = "last try"
    parameter_name = "failed"

    def lookups(self, request: Any, model_admin: Any) -> tuple[tuple[str, str], ...]:
        """The choices."""
        return (("yes", "failed"), ("no", "none yet"))

    def queryset(self, request: Any, queryset: Any) -> Any:
        """The chosen rows."""
        if self.value() == "yes":
            return queryset.filter(attempts__gt=0)
        return queryset.filter(attempts=0) if self.value() == "no" else queryset


@admin.register(OutboxMessage)
class OutboxMessageAdmin(admin.ModelAdmin):
    """Waiting messages. Deleting one means that it is never sent; those behind it, of the same key, are sent then."""

    list_display = ("id", "topic", "order_key", "tag", "created", "attempts", "last_error")
    list_filter = (FailedFilter, "topic")
    search_fields = ("order_key", "message_keys", "dedup_key")
    ordering = ("id",)
    actions = ("retry_now",)
    fields = (
        "id", "topic", "order_key", "tag", "message_keys", "properties", "body_text", "dedup_key", "created", "attempts",
        "last_error",
    )  # fmt: skip
    readonly_fields = fields

    @admin.display(description="created", ordering="created_ms")
    def created(self, row: OutboxMessage) -> str:
        """When the row was made."""
        return datetime.fromtimestamp(row.created_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")

    @admin.display(description="body")
    def body_text(self, row: OutboxMessage) -> str:
        """The begin of the body as text."""
        return bytes(row.body)[:BODY_BYTES_SHOWN].decode(errors="backslashreplace")

    @admin.action(description="Retry now", permissions=("delete",))
    def retry_now(self, request: Any, queryset: Any) -> None:
        """Let the relay send these rows with its next batch."""
        count = queryset.update(retry_at_ms=0)
        self.message_user(request, f"{count} messages are retried")

    def has_add_permission(self, request: Any) -> bool:
        """Only transactions of the application add messages."""
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        """Messages are not edited."""
        return False
