"""Tasks of a shop: `celery -A shop_tasks worker` in this directory runs them, `python shop_tasks.py` sends some."""

import os

from celery import Celery, group

import aerobee.contrib.celery  # noqa: F401 - registers aerobee://

NAMESERVER = os.environ.get("AEROBEE_NAMESRV_ADDR", "127.0.0.1:9876")
app = Celery("shop_tasks", broker=f"aerobee://{NAMESERVER}/", backend="rpc://")
app.conf.update(
    task_acks_late=True,  # acknowledge a task when it is done: nothing is lost with a worker
    task_reject_on_worker_lost=True,  # also when only one process of its pool dies
    task_default_queue="shop-tasks",
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)


@app.task
def price(article: str) -> int:
    return {"bell": 12, "saddle": 42}[article]


@app.task(bind=True, max_retries=3)
def reserve(self, article: str) -> str:
    if self.request.retries == 0:
        raise self.retry(countdown=1)  # the broker keeps it for a second
    return f"{article} reserved at try {self.request.retries + 1}"


if __name__ == "__main__":
    print(price.delay("bell").get(timeout=30))
    print(group(price.s(article) for article in ("bell", "saddle"))().get(timeout=30))
    print(reserve.delay("saddle").get(timeout=30))
