// Every kind of message of RocketMQ's gRPC protocol, sent and received by its official Node.js client.
//
// Arguments and outcomes as go-grpc/main.go. NODE_PATH names the directory of the installed packages.
'use strict';

const {
  ConsumeResult,
  FilterExpression,
  LitePushConsumerBuilder,
  Producer,
  PushConsumer,
  SimpleConsumer,
} = require('rocketmq-client-nodejs');

const [endpoints, prefix, ...wanted] = process.argv.slice(2);
const PATIENCE_MS = 120_000;
const INVISIBLE_MS = 30_000;
const ALL = FilterExpression.SUB_ALL;
const [COMMIT, ROLLBACK] = [1, 2]; // TransactionResolution, which the package does not export
const quiet = { debug() {}, info() {}, warn: console.error, error: console.error };
const common = { endpoints, namespace: '', requestTimeout: 10_000, logger: quiet };
const pause = ms => new Promise(done => setTimeout(done, ms));

// Make a call until it works: RocketMQ's proxy gives up soon where the machine is busy.
async function patiently(call) {
  for (let attempt = 0; ; attempt++) {
    try {
      return await call();
    } catch (error) {
      if (attempt === 19) throw error;
      await pause(1_000);
    }
  }
}

const started = make =>
  patiently(async () => {
    const client = make();
    await client.startup();
    return client;
  });
const producing = (topic, checker) => started(() => new Producer({ ...common, topic, checker, maxAttempts: 3 }));
const consuming = (topic, expression = ALL) =>
  started(
    () =>
      new SimpleConsumer({
        ...common,
        consumerGroup: `G${topic}`,
        subscriptions: new Map([[topic, expression]]),
        awaitDuration: 3_000,
      }),
  );
const text = view => view.body.toString();
const send = (producer, topic, body, fields = {}) =>
  patiently(() => producer.send({ topic, body: Buffer.from(body), ...fields }));

// What `describe` tells of `count` messages, each once, acknowledged.
async function receive(consumer, count, batch, describe) {
  const found = [];
  const end = Date.now() + PATIENCE_MS;
  while (found.length < count && Date.now() < end) {
    for (const view of await patiently(() => consumer.receive(batch, INVISIBLE_MS))) {
      const told = describe(view);
      if (!found.includes(told)) found.push(told);
      await patiently(() => consumer.ack(view));
    }
  }
  return found;
}

// What a push consumer was given, by message group or lite topic.
class Seen {
  groups = new Map();
  count = 0;

  consume(view) {
    const name = view.liteTopic || view.messageGroup || '';
    const bodies = this.groups.get(name) || [];
    if (!bodies.includes(text(view))) {
      bodies.push(text(view));
      this.groups.set(name, bodies);
      this.count++;
    }
    return ConsumeResult.SUCCESS;
  }

  async told(count, inOrder) {
    const end = Date.now() + PATIENCE_MS;
    while (this.count < count && Date.now() < end) await pause(50);
    return [...this.groups]
      .map(([name, bodies]) => `${name} ${(inOrder ? bodies : [...bodies].sort()).join(' ')}`.trim())
      .sort()
      .join('; ');
  }
}

const pushing = (topic, seen) =>
  started(
    () =>
      new PushConsumer({
        ...common,
        consumerGroup: `G${topic}`,
        subscriptions: new Map([[topic, ALL]]),
        messageListener: { consume: view => seen.consume(view) },
        longPollingTimeout: 3_000,
      }),
  );

const scenarios = {
  async simple(topic) {
    const producer = await producing(topic);
    const consumer = await consuming(topic);
    for (let number = 0; number < 4; number++) {
      const properties = new Map([['p', `v${number}`]]);
      await send(producer, topic, `m${number}`, { tag: `tag${number}`, keys: [`key${number}`, 'second'], properties });
    }
    const told = view =>
      `${text(view)}|${view.tag}|${view.keys.join(',')}|${view.properties.get('p')}|${view.deliveryAttempt}`;
    return (await receive(consumer, 4, 16, told)).sort().join(' ');
  },

  async tags(topic) {
    const producer = await producing(topic);
    const consumer = await consuming(topic, new FilterExpression('a || c'));
    for (let number = 0; number < 8; number++) await send(producer, topic, `m${number}`, { tag: 'abcd'[number % 4] });
    return (await receive(consumer, 4, 16, text)).sort().join(' ');
  },

  async push(topic) {
    const seen = new Seen();
    const producer = await producing(topic);
    await pushing(topic, seen);
    for (let number = 0; number < 8; number++) await send(producer, topic, `m${number}`);
    return seen.told(8, false);
  },

  async fifo(topic) {
    const seen = new Seen();
    const producer = await producing(topic);
    await pushing(topic, seen);
    for (let number = 0; number < 9; number++) {
      await send(producer, topic, `m${number}`, { messageGroup: `group${number % 3}` });
    }
    return seen.told(9, true);
  },

  async delay(topic) {
    const producer = await producing(topic);
    const consumer = await consuming(topic);
    const due = Date.now() + 4_000;
    await send(producer, topic, 'later', { deliveryTimestamp: new Date(due) });
    return (await receive(consumer, 1, 16, view => `${text(view)} ${Date.now() >= due - 1_500}`)).join(' ');
  },

  async recall(topic) {
    const producer = await producing(topic);
    const consumer = await consuming(topic);
    const now = Date.now();
    const receipt = await send(producer, topic, 'never', { deliveryTimestamp: new Date(now + 12_000) });
    await send(producer, topic, 'after', { deliveryTimestamp: new Date(now + 15_000) });
    const recalled = await patiently(() => producer.recallMessage(topic, receipt.recallHandle));
    return `${recalled.messageId === receipt.messageId} ${(await receive(consumer, 1, 16, text)).join(' ')}`;
  },

  async transaction(topic) {
    const checked = new Set();
    const checker = {
      async check(view) {
        checked.add(text(view));
        return text(view) === 'rollback' ? ROLLBACK : COMMIT;
      },
    };
    const producer = await producing(topic, checker);
    const consumer = await consuming(topic);
    const half = body =>
      patiently(async () => {
        const transaction = producer.beginTransaction();
        await producer.send({ topic, body: Buffer.from(body) }, transaction);
        return transaction;
      });
    await half('checked'); // first, because RocketMQ's check of half messages is slow while an undecided one lies behind others
    const found = await receive(consumer, 1, 16, text);
    const rollback = await half('rollback');
    await patiently(() => rollback.rollback());
    const commit = await half('commit');
    await patiently(() => commit.commit());
    found.push(...(await receive(consumer, 1, 16, text)));
    return `${found.join(' ')} ${checked.has('checked')}`;
  },

  async priority(topic) {
    const producer = await producing(topic);
    // This client takes priority 0 for none.
    for (const priority of [2, 1, 3]) await send(producer, topic, `p${priority}`, { priority });
    const consumer = await consuming(topic);
    return (await receive(consumer, 3, 1, text)).join(' ');
  },

  async again(topic) {
    const producer = await producing(topic);
    const consumer = await consuming(topic);
    await send(producer, topic, 'again');
    const found = [];
    const end = Date.now() + PATIENCE_MS;
    while (found.length < 2 && Date.now() < end) {
      for (const view of await patiently(() => consumer.receive(4, INVISIBLE_MS))) {
        const told = `${text(view)}|${view.deliveryAttempt}`;
        if (found.includes(told)) continue;
        found.push(told);
        if (found.length === 1) await consumer.changeInvisibleDuration(view, 10_000);
        else await consumer.ack(view);
      }
    }
    return found.join(' ');
  },

  async lite(topic) {
    const seen = new Seen();
    const producer = await producing(topic);
    const consumer = await patiently(() =>
      new LitePushConsumerBuilder()
        .setClientConfiguration(common)
        .setConsumerGroup(`G${topic}`)
        .bindTopic(topic)
        .setMessageListener({ consume: view => seen.consume(view) })
        .build(),
    );
    for (const name of ['a', 'b']) await patiently(() => consumer.subscribeLite(name));
    await pause(2_000); // RocketMQ loses what comes before a group's first receive of a lite topic
    for (let number = 0; number < 6; number++) {
      await send(producer, topic, `m${number}`, { liteTopic: 'abc'[number % 3] });
    }
    return seen.told(4, true);
  },

  async wrongtype(topic) {
    const producer = await producing(topic);
    try {
      const messageGroup = 'a group in a topic of normal messages';
      await producer.send({ topic, body: Buffer.from('x'), messageGroup });
    } catch {
      return 'refused';
    }
    return 'sent';
  },
};

async function run(name) {
  let outcome;
  try {
    outcome = await scenarios[name](`${prefix}_${name}`);
  } catch (error) {
    outcome = `failed: ${error}`;
  }
  process.stdout.write(`${JSON.stringify({ scenario: name, outcome })}\n`);
}

// Clients that are left end with the process.
Promise.all(wanted.map(run)).then(() => process.stdout.write('', () => process.exit(0)));
