"""FastAPI: one producer and one consumer a process, opened and closed with the application: `uvicorn fastapi_app:app`."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request

from aerobee import ConsumeFrom, ConsumerConfig, Message, Producer, PushConsumer, ReceivedMessage
from aerobee.errors import SendFailed

NAMESERVER = os.environ.get("AEROBEE_NAMESRV_ADDR", "127.0.0.1:9876")
shipped: list[str] = []


async def ship(message: ReceivedMessage) -> None:
    shipped.append(message.body.decode())


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
    async with (
        Producer(NAMESERVER, "web") as producer,
        PushConsumer(NAMESERVER, "shipping", subscriptions={"web-orders": "*"}, handler=ship, config=config),
    ):
        app.state.producer = producer
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{customer}")
async def add_order(customer: str, request: Request) -> dict[str, str]:
    try:
        result = await request.app.state.producer.send(
            Message("web-orders", await request.body(), keys=(customer,)), message_group=customer
        )
    except SendFailed as error:
        # Another attempt of the caller may store the order twice if error.may_be_stored.
        raise HTTPException(503, str(error)) from error
    return {"message_id": result.message_id}
