"""Send lines from standard input with RocketMQ's C++ client; prints one JSON object a message.

Runs in .interop/cpp-venv:  cpp/produce.py NAMESRV TOPIC sync|oneway|orderly|delayed
"""

import json
import sys

from rocketmq.client import Message, Producer

namesrv, topic, mode = sys.argv[1:4]
producer = Producer("CPP_PG_" + topic)
producer.set_namesrv_addr(namesrv)
producer.set_timeout(10_000)
producer.start()
for number, line in enumerate(sys.stdin.buffer.read().split(b"\n")[:-1]):
    message = Message(topic)
    message.set_body(line)
    message.set_keys(f"cpp{number}")
    message.set_tags("TagC")
    message.set_property("lineNumber", str(number))
    if mode == "delayed":
        message.set_delay_time_level(1)
    if mode == "oneway":
        producer.send_oneway(message)
        continue
    if mode == "orderly":
        result = producer.send_orderly(message, number % 4)
    else:
        result = producer.send_sync(message)
    print(
        json.dumps({"status": result.status.name, "msg_id": result.msg_id, "offset": result.offset}),
        flush=True,
    )
producer.shutdown()
