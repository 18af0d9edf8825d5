const { FilterExpression, Producer, SimpleConsumer } = require('rocketmq-client-nodejs');

const client = { endpoints: process.argv[2], namespace: '' };

async function main() {
  const producer = new Producer({ ...client, topic: 'orders' });
  await producer.startup();
  await producer.send({ topic: 'orders', body: Buffer.from('an order from Node.js') });
  await producer.shutdown();

  const consumer = new SimpleConsumer({
    ...client,
    consumerGroup: 'node-billing',
    subscriptions: new Map([['orders', FilterExpression.SUB_ALL]]),
    awaitDuration: 20_000,
  });
  await consumer.startup();
  for (const message of await consumer.receive(1, 30_000)) {
    console.log('received', message.body.toString());
    await consumer.ack(message);
  }
  await consumer.shutdown();
}

main().then(() => process.exit()); // timers of the client outlive its shutdown
