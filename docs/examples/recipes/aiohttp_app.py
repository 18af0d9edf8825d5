"""aiohttp: the producer is a cleanup context of the application: `python -m aiohttp.web aiohttp_app:make_app`."""

import os
from collections.abc import AsyncIterator

from aiohttp import web

from aerobee import Message, Producer

NAMESERVER = os.environ.get("AEROBEE_NAMESRV_ADDR", "127.0.0.1:9876")
PRODUCER = web.AppKey("producer", Producer)


async def open_producer(app: web.Application) -> AsyncIterator[None]:
    async with Producer(NAMESERVER, "web") as producer:
        app[PRODUCER] = producer
        yield


async def add_order(request: web.Request) -> web.Response:
    result = await request.app[PRODUCER].send(Message("web-orders", await request.read()))
    return web.json_response({"message_id": result.message_id})


def make_app(arguments: list[str] | None = None) -> web.Application:
    app = web.Application()
    app.cleanup_ctx.append(open_producer)
    app.router.add_post("/orders", add_order)
    return app
