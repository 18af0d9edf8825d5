"""Consume with RocketMQ's C++ push consumer; prints one JSON object a message, ends after COUNT different ones.

Runs in .interop/cpp-venv:  cpp/consume.py NAMESRV TOPIC GROUP COUNT TIMEOUT_S TAGS concurrent|orderly
"""

import json
import sys
import threading

from rocketmq.client import PushConsumer

namesrv, topic, group, count, timeout_s, tags, order = sys.argv[1:8]
seen = set()
lock = threading.Lock()
complete = threading.Event()


def on_message(message):
    with lock:
        fields = {
            "topic": message.topic,
            "queue": message.queue_id,
            "offset": message.queue_offset,
            "body": message.body.decode(),
            "tags": (message.tags or b"").decode(),
            "keys": (message.keys or b"").decode(),
        }
        print(json.dumps(fields), flush=True)
        seen.add((message.queue_id, message.queue_offset))
        if len(seen) >= int(count):
            complete.set()


consumer = PushConsumer(group, orderly=order == "orderly")
consumer.set_namesrv_addr(namesrv)
consumer.set_thread_count(1)
consumer.subscribe(topic, on_message, tags)
consumer.start()
done = complete.wait(float(timeout_s))
consumer.shutdown()
sys.exit(0 if done else 3)
