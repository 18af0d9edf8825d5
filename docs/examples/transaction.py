# Pay an order and announce it, both or neither: a database and a message in one transaction.
import asyncio
import os
import sqlite3

from aerobee import Message, TransactionProducer, TransactionState

NAMESERVER = os.environ.get("AEROBEE_NAMESRV_ADDR", "127.0.0.1:9876")
# The checker is a plain function: it runs in a separate thread.
database = sqlite3.connect("orders.db", check_same_thread=False)
database.execute("create table if not exists paid (transaction_id text primary key, number text)")


def checker(message):
    """The broker asks: what became of this transaction? The database knows, whatever happened to its producer."""
    found = database.execute("select 1 from paid where transaction_id = ?", (message.message_id,)).fetchone()
    print("asked about", message.body.decode(), "->", "commit" if found else "roll back")
    return TransactionState.COMMIT if found else TransactionState.ROLLBACK


async def main() -> None:
    async with TransactionProducer(NAMESERVER, "shop", checker=checker) as producer:
        async with producer.transaction(Message("paid", b"order 17", keys=("order-17",))) as transaction:
            with database:
                database.execute("insert into paid values (?, '17')", (transaction.transaction_id,))
        print("order 17:", transaction.result.state.name)

        try:
            async with producer.transaction(Message("paid", b"order 18")):
                raise ConnectionError("the database went away")
        except ConnectionError as error:
            print("order 18:", error)
        await asyncio.sleep(8)  # after 6 s the broker asks


asyncio.run(main())
