"""Celery and Kombu over Aerobee or RocketMQ. Needs the extra `celery`.

    import aerobee.contrib.celery  # registers the URL schemes aerobee:// and aerobees://

    app = Celery("shop", broker="aerobee://127.0.0.1:9876/")

Kombu has no entry points for transports, so the program imports this module before it connects. The modules below are
loaded when Kombu opens the first connection.
"""

from __future__ import annotations

from aerobee.contrib.celery.scheme import register

register()
