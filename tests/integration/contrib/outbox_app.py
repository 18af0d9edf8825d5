"""An application in a separate process that writes facts and their messages in one transaction, and rolls some back.

    outbox_app.py URL NAME

For each key the table `facts` says what was committed: the numbers 1, 2, ... of the key. Each transaction locks the key,
adds the next number and its message; a fifth of them are rolled back. Ends when it is killed.
"""

from __future__ import annotations

import asyncio
import random
import sys

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from aerobee.contrib.outbox.enqueue import enqueue
from aerobee.message import Message

TOPIC = "facts"
KEYS = 8
PREPARE = (
    "CREATE TABLE IF NOT EXISTS counters (name VARCHAR(20) PRIMARY KEY, number INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS facts (name VARCHAR(20) NOT NULL, number INTEGER NOT NULL)",
)
LOCK = "UPDATE counters SET number = number + 1 WHERE name = :name"
NUMBER = "SELECT number FROM counters WHERE name = :name"


async def prepare(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        for statement in PREPARE:
            await connection.execute(text(statement))
        for key in range(KEYS):
            await connection.execute(text("INSERT INTO counters VALUES (:name, 0)"), {"name": f"k{key}"})


async def add(engine: AsyncEngine, name: str, *, rolls_back: bool, application: str) -> None:
    async with engine.connect() as connection:
        transaction = await connection.begin()
        await connection.execute(text(LOCK), {"name": name})
        number = (await connection.execute(text(NUMBER), {"name": name})).scalar_one()
        body = f"{name}:{number}:{'rolled back' if rolls_back else 'committed'}:{application}".encode()
        await connection.execute(
            text("INSERT INTO facts VALUES (:name, :number)"), {"name": name, "number": number}
        )
        await enqueue(connection, Message(TOPIC, body, tag="fact", keys=(name,)), key=name)
        if rolls_back:
            await transaction.rollback()
        else:
            await transaction.commit()


async def work(url: str, application: str) -> None:
    engine = create_async_engine(url)
    rng = random.Random(application)
    while True:
        try:
            await add(
                engine, f"k{rng.randrange(KEYS)}", rolls_back=rng.random() < 0.2, application=application
            )
        except SQLAlchemyError as error:
            print(error, flush=True)
        await asyncio.sleep(rng.choice((0, 0, 0.005)))


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2]))
