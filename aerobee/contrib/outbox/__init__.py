"""An outbox in the application's database: what a transaction commits is sent, what it rolls back is not. Needs the
extra `outbox`, and a driver of the database.

    async with AsyncSession(engine) as session, session.begin():
        session.add(order)
        await enqueue(session, Message("orders", body), key=str(order.id))

    python -m aerobee.contrib.outbox --database postgresql+psycopg://… --nameserver 127.0.0.1:9876

`aerobee.contrib.outbox.django` is the same as a Django app.
"""
