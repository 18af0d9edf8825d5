import sys

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

client = ClientConfiguration(sys.argv[1], Credentials())

producer = Producer(client, ("orders",))
producer.startup()
message = Message()
message.topic, message.body = "orders", b"an order from Python"
producer.send(message)
producer.shutdown()

consumer = SimpleConsumer(client, "python-billing", {"orders": FilterExpression()})
consumer.startup()
for message in consumer.receive(1, 30):  # messages, seconds until a redelivery
    print("received", message.body.decode())
    consumer.ack(message)
consumer.shutdown()
