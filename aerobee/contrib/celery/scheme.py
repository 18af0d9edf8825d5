"""Registration of the URL schemes in Kombu's table of transports. aerobees:// is aerobee:// with TLS."""

from __future__ import annotations

from aerobee.errors import UsageError

try:
    from kombu.transport import TRANSPORT_ALIASES
except ImportError as error:
    raise UsageError("aerobee.contrib.celery needs Celery: pip install 'aerobee[celery]'") from error


def register() -> None:
    """Make Kombu resolve both schemes. A repeated call changes nothing."""
    TRANSPORT_ALIASES["aerobee"] = "aerobee.contrib.celery.transport:Transport"
    TRANSPORT_ALIASES["aerobees"] = "aerobee.contrib.celery.transport:TlsTransport"
