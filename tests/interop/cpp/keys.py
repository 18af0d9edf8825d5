"""One send of the C++ client with keys, or without: arguments NameServer, topic, access key (empty: none), secret key.

Prints {"send"}: "ok" or the error.
"""

import json
import sys

from rocketmq.client import Message, Producer

namesrv, topic, access_key, secret_key = sys.argv[1:5]
producer = Producer("cpp_keys")
producer.set_namesrv_addr(namesrv)
producer.set_timeout(30_000)  # ms; a refusal comes immediately
if access_key:
    producer.set_session_credentials(access_key, secret_key, "ALIYUN")
producer.start()
message = Message(topic)
message.set_body("cpp")
try:
    producer.send_sync(message)
    outcome = "ok"
except Exception as error:
    outcome = f"{type(error).__name__}: {error}"
print(json.dumps({"send": outcome}), flush=True)
producer.shutdown()
