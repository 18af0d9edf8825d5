"""Tasks of a shop: `taskiq worker taskiq_shop:broker` in this directory runs them, `python taskiq_shop.py` sends some."""

import asyncio
import os

from taskiq import TaskiqScheduler

from aerobee.contrib.taskiq import AerobeeBroker, AerobeeScheduleSource

NAMESERVER = os.environ.get("AEROBEE_NAMESRV_ADDR", "127.0.0.1:9876")
broker = AerobeeBroker(NAMESERVER, topic="taskiq-shop")
source = AerobeeScheduleSource(NAMESERVER, topic="taskiq-shop-schedules")
scheduler = TaskiqScheduler(broker, [source])  # taskiq scheduler taskiq_shop:scheduler


@broker.task("reserve")
async def reserve(article: str) -> None:
    print(f"{article} reserved", flush=True)


async def main() -> None:
    await broker.startup()
    await reserve.kiq("bell")
    await reserve.kicker().with_labels(delay=1).kiq("saddle")  # the brokers keep it for a second
    await source.startup()
    schedule = await reserve.schedule_by_cron(source, "0 6 * * *", "lamp")
    print([each.cron for each in await source.get_schedules()])
    await source.delete_schedule(schedule.schedule_id)
    await source.shutdown()
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
