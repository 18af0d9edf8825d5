"""The outbox as a Django app: `INSTALLED_APPS = [..., "aerobee.contrib.outbox.django"]`, then `manage.py migrate`.

    from aerobee.contrib.outbox.django.enqueue import enqueue

    with transaction.atomic():
        order.save()
        enqueue(Message("orders", body), key=str(order.pk))

`manage.py aerobee_outbox_relay --nameserver 127.0.0.1:9876` sends the rows; the admin page shows what waits.
"""
