# RocketMQ's C++ client through its Python package: pip install rocketmq==0.4.4
import os
import threading

from rocketmq.client import Message, Producer, PushConsumer

producer = Producer("cpp-producers")
producer.set_namesrv_addr(os.environ.get("AEROBEE_NAMESRV_ADDR", "127.0.0.1:9876"))
producer.start()
message = Message("orders")
message.set_tags("new")
message.set_body("an order from C++")
print(producer.send_sync(message).status)
producer.shutdown()

received = threading.Event()


def handle(message):
    print("received", message.body.decode())
    received.set()


consumer = PushConsumer("cpp-billing")
consumer.set_namesrv_addr(os.environ.get("AEROBEE_NAMESRV_ADDR", "127.0.0.1:9876"))
consumer.subscribe("orders", handle, "new")
consumer.start()
received.wait(30)
consumer.shutdown()
