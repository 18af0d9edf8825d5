import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * One long-lived JVM that runs RocketMQ's Java clients and mqadmin for the interop tests.
 *
 * Reads one JSON object a line from standard input, {"id": 1, "op": "push.start", ...}, and answers each with a line
 * {"id": 1, "ok": true, "result": ...} or {"id": 1, "ok": false, "error": "..."}. Operations run side by side, each in
 * a thread of its own, except mqadmin's, which print to System.out and therefore wait for each other. Ends with its
 * standard input.
 */
public class Driver {
    private final PrintStream answers = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), true, StandardCharsets.UTF_8);
    private final Map<String, DefaultMQProducer> producers = new ConcurrentHashMap<>();
    private final Map<String, Push> pushes = new ConcurrentHashMap<>();
    private final Map<String, DefaultLitePullConsumer> lites = new ConcurrentHashMap<>();
    private final Map<String, DefaultMQPullConsumer> pulls = new ConcurrentHashMap<>();
    private final PopDriver pops = new PopDriver();
    private final Object adminLock = new Object();
    private final ReplyDriver replies = new ReplyDriver();
    private final TransactionDriver transactions = new TransactionDriver();
    private final OrderDriver orders = new OrderDriver();

    /** A push consumer and what it received, in the order of arrival. */
    private static final class Push {
        DefaultMQPushConsumer consumer;
        final List<JSONObject> received = new ArrayList<>();

        synchronized void add(List<MessageExt> messages) {
            for (MessageExt message : messages) {
                received.add(describe(message));
            }
            notifyAll();
        }
    }

    public static void main(String[] args) throws Exception {
        System.setOut(System.err);
        new Driver().serve();
        System.exit(0);
    }

    /**
     * Makes shutdowns quick. A client that shuts down joins its NettyEventExecutor, which looks at its stop flag only
     * every 3 s unless it is interrupted; one that goes on merely logs the interrupt.
     */
    private static void hastenShutdowns() {
        Thread watcher = new Thread(() -> {
            while (true) {
                Map<Thread, StackTraceElement[]> stacks = Thread.getAllStackTraces();
                boolean waits = stacks.values().stream().anyMatch(stack -> java.util.Arrays.stream(stack).anyMatch(
                    frame -> frame.getClassName().endsWith("ServiceThread") && frame.getMethodName().equals("shutdown")));
                if (waits) {
                    stacks.keySet().stream().filter(thread -> thread.getName().startsWith("NettyEventExecutor"))
                        .forEach(Thread::interrupt);
                }
                try {
                    Thread.sleep(50);
                } catch (InterruptedException end) {
                    return;
                }
            }
        }, "hasten-shutdowns");
        watcher.setDaemon(true);
        watcher.start();
    }

    private void serve() throws Exception {
        hastenShutdowns();
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JSONObject request = JSON.parseObject(line);
            threads.execute(() -> answer(request));
        }
    }

    private void answer(JSONObject request) {
        JSONObject answer = new JSONObject();
        answer.put("id", request.get("id"));
        try {
            answer.put("result", perform(request));
            answer.put("ok", true);
        } catch (Throwable failure) {
            StringBuilder text = new StringBuilder();
            for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
                text.append(text.length() == 0 ? "" : " <- ").append(cause);
            }
            failure.printStackTrace();
            answer.put("ok", false);
            answer.put("error", text.toString());
        }
        String line = answer.toString(JSONWriter.Feature.WriteNulls);
        synchronized (answers) {
            answers.println(line);
        }
    }

    private Object perform(JSONObject q) throws Exception {
        switch (q.getString("op")) {
            case "ping": return "pong";
            case "admin": return admin(q);
            case "producer.start": return startProducer(q);
            case "producer.send": return send(q);
            case "producer.queues": return names(producers.get(q.getString("name")).fetchPublishMessageQueues(q.getString("topic")));
            case "producer.recall": return producers.get(q.getString("name")).recallMessage(q.getString("topic"), q.getString("handle"));
            case "producer.stop": producers.remove(q.getString("name")).shutdown(); return null;
            case "push.start": return startPush(q);
            case "push.received": return received(q);
            case "push.count": return waitForCount(q);
            case "push.queues": return owned(q);
            case "push.stop": pushes.get(q.getString("name")).consumer.shutdown(); return null;  // what it received stays
            case "pop.start", "pop.received", "pop.stop": return pops.perform(q);
            case "lite.start": return startLite(q);
            case "lite.stop": lites.remove(q.getString("name")).shutdown(); return null;
            case "pull.start": return startPull(q);
            case "pull.stop": pulls.remove(q.getString("name")).shutdown(); return null;
            default:
                if (q.getString("op").startsWith("reply.") || q.getString("op").startsWith("trace.")) {
                    return replies.perform(q);
                }
                if (q.getString("op").startsWith("order.")) {
                    return orders.perform(q);
                }
                if (q.getString("op").startsWith("trans.")) {
                    return transactions.perform(q);
                }
                if (q.getString("op").startsWith("lite.")) {
                    return lite(lites.get(q.getString("name")), q);
                }
                if (q.getString("op").startsWith("pull.")) {
                    return pull(pulls.get(q.getString("name")), q);
                }
                throw new IllegalArgumentException("unknown operation " + q.getString("op"));
        }
    }

    // ---- mqadmin

    /** The commands, as MQAdminStartup holds them. Some keep a closed client, so each run makes them anew. */
    private static final class Commands extends MQAdminStartup {
        static void forget() {
            SUB_COMMANDS.clear();
        }
    }

    private Object admin(JSONObject q) {
        synchronized (adminLock) {
            Commands.forget();
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            ByteArrayOutputStream err = new ByteArrayOutputStream();
            PrintStream oldOut = System.out;
            PrintStream oldErr = System.err;
            System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
            System.setProperty("rocketmq.namesrv.addr", q.getString("namesrv"));
            try {
                MQAdminStartup.main0(q.getList("args", String.class).toArray(new String[0]), null);
            } finally {
                System.out.flush();
                System.err.flush();
                System.setOut(oldOut);
                System.setErr(oldErr);
            }
            JSONObject result = new JSONObject();
            result.put("out", out.toString(StandardCharsets.UTF_8));
            result.put("err", err.toString(StandardCharsets.UTF_8));
            return result;
        }
    }

    // ---- producer

    private static void configure(ClientConfig client, JSONObject q) {
        client.setNamesrvAddr(q.getString("namesrv"));
        client.setMqClientApiTimeout(60_000); // queries of routes and offsets; 3 s by default
        client.setInstanceName(q.getString("name"));
        client.setPollNameServerInterval(1000);
        client.setHeartbeatBrokerInterval(5000);
        client.setEnableStreamRequestType(false);
        client.setUseTLS(q.getBooleanValue("tls"));
        if (q.containsKey("client_ip")) {
            client.setClientIP(q.getString("client_ip"));
        }
    }

    private Object startProducer(JSONObject q) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(q.getString("group"));
        configure(producer, q);
        producer.setSendMsgTimeout(q.getIntValue("timeout_ms", 10_000));
        if (q.containsKey("compress_over")) {
            producer.setCompressMsgBodyOverHowmuch(q.getIntValue("compress_over"));
        }
        if (q.containsKey("default_queues")) {
            producer.setDefaultTopicQueueNums(q.getIntValue("default_queues"));
        }
        producer.setRetryTimesWhenSendFailed(q.getIntValue("retries", 2));
        producer.start();
        producers.put(q.getString("name"), producer);
        return null;
    }

    private static Message message(JSONObject m) {
        Message message = new Message(m.getString("topic"), m.getString("tags"), m.getString("keys"),
            m.getIntValue("flag", 0), m.getString("body").getBytes(StandardCharsets.UTF_8), true);
        JSONObject properties = m.getJSONObject("properties");
        if (properties != null) {
            properties.forEach((name, value) -> message.putUserProperty(name, String.valueOf(value)));
        }
        return TimerDriver.settle(message, m);
    }

    private Object send(JSONObject q) throws Exception {
        DefaultMQProducer producer = producers.get(q.getString("name"));
        String mode = q.getString("mode");
        JSONArray wanted = q.getJSONArray("messages");
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < wanted.size(); i++) {
            messages.add(message(wanted.getJSONObject(i)));
        }
        JSONObject[] results = new JSONObject[messages.size()];
        if (mode.equals("batch")) {
            return List.of(describe(producer.send(messages)));
        }
        CountDownLatch left = new CountDownLatch(messages.size());
        for (int i = 0; i < messages.size(); i++) {
            Message message = messages.get(i);
            JSONObject m = wanted.getJSONObject(i);
            int at = i;
            SendCallback callback = new SendCallback() {
                @Override public void onSuccess(SendResult result) {
                    results[at] = describe(result);
                    left.countDown();
                }

                @Override public void onException(Throwable failure) {
                    results[at] = new JSONObject();
                    results[at].put("error", failure.toString());
                    left.countDown();
                }
            };
            switch (mode) {
                case "sync":
                    results[at] = describe(m.containsKey("queue")
                        ? producer.send(message, new MessageQueue(message.getTopic(), m.getString("broker"), m.getIntValue("queue")))
                        : producer.send(message));
                    break;
                case "selector":
                    results[at] = describe(producer.send(message,
                        (queues, msg, shard) -> queues.get(Math.floorMod((Integer) shard, queues.size())), m.getInteger("shard")));
                    break;
                case "async": producer.send(message, callback); break;
                case "oneway": producer.sendOneway(message); break;
                default: throw new IllegalArgumentException("unknown mode " + mode);
            }
        }
        if (mode.equals("async") && !left.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException(left.getCount() + " async sends unanswered");
        }
        if (mode.equals("oneway")) {
            return null;
        }
        return List.of(results);
    }

    private static JSONObject describe(SendResult r) {
        JSONObject o = new JSONObject();
        o.put("status", r.getSendStatus().name());
        o.put("msg_id", r.getMsgId());
        o.put("offset_msg_id", r.getOffsetMsgId());
        o.put("broker", r.getMessageQueue().getBrokerName());
        o.put("queue", r.getMessageQueue().getQueueId());
        o.put("offset", r.getQueueOffset());
        o.put("recall_handle", r.getRecallHandle());
        return o;
    }

    private static JSONObject describe(MessageExt m) {
        JSONObject o = new JSONObject();
        o.put("topic", m.getTopic());
        o.put("broker", m.getBrokerName());
        o.put("queue", m.getQueueId());
        o.put("offset", m.getQueueOffset());
        o.put("body", m.getBody() == null ? "" : new String(m.getBody(), StandardCharsets.UTF_8));
        o.put("tags", m.getTags());
        o.put("keys", m.getKeys());
        o.put("flag", m.getFlag());
        o.put("msg_id", m.getMsgId());
        o.put("properties", m.getProperties());
        o.put("reconsume_times", m.getReconsumeTimes());
        o.put("store_timestamp", m.getStoreTimestamp());
        return o;
    }

    private static List<List<Object>> names(Collection<MessageQueue> queues) {
        List<List<Object>> list = new ArrayList<>();
        for (MessageQueue queue : new TreeSet<>(queues)) {
            list.add(List.of(queue.getTopic(), queue.getBrokerName(), queue.getQueueId()));
        }
        return list;
    }

    // ---- push consumer

    private Object startPush(JSONObject q) throws Exception {
        Push push = new Push();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(q.getString("group"));
        configure(consumer, q);
        consumer.setMessageModel(q.getBooleanValue("broadcast") ? MessageModel.BROADCASTING : MessageModel.CLUSTERING);
        String from = q.getString("from");
        if (from == null || from.equals("first")) {
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        } else if (from.equals("last")) {
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        } else {
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP);
            consumer.setConsumeTimestamp(from);
        }
        if (q.containsKey("sql")) {
            consumer.subscribe(q.getString("topic"), MessageSelector.bySql(q.getString("sql")));
        } else {
            consumer.subscribe(q.getString("topic"), q.containsKey("tags") ? q.getString("tags") : "*");
        }
        consumer.setPersistConsumerOffsetInterval(500);
        // Without it a stop commits before it waits for listeners: what they have just been given comes again.
        consumer.setAwaitTerminationMillisWhenShutdown(10_000);
        consumer.setMaxReconsumeTimes(q.getIntValue("max_reconsume", -1));
        String failBody = q.getString("fail_once");
        if (q.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                push.add(messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                push.add(messages);
                for (MessageExt message : messages) {
                    if (failBody != null && message.getReconsumeTimes() == 0
                        && failBody.equals(new String(message.getBody(), StandardCharsets.UTF_8))) {
                        context.setDelayLevelWhenNextConsume(1);
                        return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                    }
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        push.consumer = consumer;
        pushes.put(q.getString("name"), push);
        consumer.start();
        return null;
    }

    private Object waitForCount(JSONObject q) throws Exception {
        Push push = pushes.get(q.getString("name"));
        int count = q.getIntValue("count", 0);
        long end = System.currentTimeMillis() + q.getLongValue("timeout_ms", 0);
        synchronized (push) {
            while (push.received.size() < count) {
                long left = end - System.currentTimeMillis();
                if (left <= 0) {
                    break;
                }
                push.wait(left);
            }
            return push.received.size();
        }
    }

    private Object received(JSONObject q) throws Exception {
        waitForCount(q);
        Push push = pushes.get(q.getString("name"));
        synchronized (push) {
            return new ArrayList<>(push.received.subList(Math.min(q.getIntValue("from", 0), push.received.size()), push.received.size()));
        }
    }

    private Object owned(JSONObject q) {
        List<MessageQueue> queues = new ArrayList<>();
        DefaultMQPushConsumer consumer = pushes.get(q.getString("name")).consumer;
        consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().forEach((queue, process) -> {
            if (queue.getTopic().equals(q.getString("topic")) && !process.isDropped()) {
                queues.add(queue);
            }
        });
        return names(queues);
    }

    // ---- lite pull consumer

    private Object startLite(JSONObject q) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(q.getString("group"));
        configure(consumer, q);
        consumer.setAutoCommit(q.getBooleanValue("auto_commit"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (q.containsKey("topic")) {
            consumer.subscribe(q.getString("topic"), q.containsKey("tags") ? q.getString("tags") : "*");
        }
        consumer.start();
        lites.put(q.getString("name"), consumer);
        return null;
    }

    private static MessageQueue queue(JSONObject q) {
        return new MessageQueue(q.getString("topic"), q.getString("broker"), q.getIntValue("queue"));
    }

    private Object lite(DefaultLitePullConsumer consumer, JSONObject q) throws Exception {
        switch (q.getString("op")) {
            case "lite.poll":
                List<JSONObject> polled = new ArrayList<>();
                long end = System.currentTimeMillis() + q.getLongValue("timeout_ms", 5000);
                while (polled.size() < q.getIntValue("count", 1) && System.currentTimeMillis() < end) {
                    for (MessageExt message : consumer.poll(200)) {
                        polled.add(describe(message));
                    }
                }
                return polled;
            case "lite.queues": return names(consumer.fetchMessageQueues(q.getString("topic")));
            case "lite.assignment": return names(consumer.assignment());
            case "lite.assign":
                List<MessageQueue> queues = new ArrayList<>();
                for (Object id : q.getJSONArray("queues")) {
                    queues.add(new MessageQueue(q.getString("topic"), q.getString("broker"), ((Number) id).intValue()));
                }
                consumer.assign(queues);
                return null;
            case "lite.seek": consumer.seek(queue(q), q.getLongValue("offset")); return null;
            case "lite.seek_begin": consumer.seekToBegin(queue(q)); return null;
            case "lite.seek_end": consumer.seekToEnd(queue(q)); return null;
            case "lite.offset_by_time": return consumer.offsetForTimestamp(queue(q), q.getLongValue("timestamp"));
            case "lite.commit": consumer.commit(); consumer.getOffsetStore().persistAll(consumer.assignment()); return null;
            case "lite.committed": return consumer.committed(queue(q));
            case "lite.pause": consumer.pause(List.of(queue(q))); return null;
            case "lite.resume": consumer.resume(List.of(queue(q))); return null;
            default: throw new IllegalArgumentException("unknown operation " + q.getString("op"));
        }
    }

    // ---- old pull consumer

    private Object startPull(JSONObject q) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(q.getString("group"));
        configure(consumer, q);
        consumer.start();
        pulls.put(q.getString("name"), consumer);
        return null;
    }

    private Object pull(DefaultMQPullConsumer consumer, JSONObject q) throws Exception {
        switch (q.getString("op")) {
            case "pull.queues": return names(consumer.fetchSubscribeMessageQueues(q.getString("topic")));
            case "pull.offsets":
                JSONObject offsets = new JSONObject();
                offsets.put("min", consumer.minOffset(queue(q)));
                offsets.put("max", consumer.maxOffset(queue(q)));
                return offsets;
            case "pull.earliest": return consumer.earliestMsgStoreTime(queue(q));
            case "pull.search": return consumer.searchOffset(queue(q), q.getLongValue("timestamp"));
            case "pull.pull":
                String tags = q.containsKey("tags") ? q.getString("tags") : "*";
                PullResult found = consumer.pull(queue(q), tags, q.getLongValue("offset"), q.getIntValue("count", 32));
                JSONObject result = new JSONObject();
                result.put("status", found.getPullStatus().name());
                result.put("next", found.getNextBeginOffset());
                result.put("min", found.getMinOffset());
                result.put("max", found.getMaxOffset());
                List<JSONObject> messages = new ArrayList<>();
                if (found.getMsgFoundList() != null) {
                    for (MessageExt message : found.getMsgFoundList()) {
                        messages.add(describe(message));
                    }
                }
                result.put("messages", messages);
                return result;
            case "pull.commit":
                consumer.updateConsumeOffset(queue(q), q.getLongValue("offset"));
                consumer.getOffsetStore().persist(queue(q));
                return null;
            case "pull.committed": return consumer.fetchConsumeOffset(queue(q), true);
            case "pull.query":
                List<JSONObject> hits = new ArrayList<>();
                for (MessageExt message : consumer.queryMessage(q.getString("topic"), q.getString("key"), 64, 0, Long.MAX_VALUE).getMessageList()) {
                    hits.add(describe(message));
                }
                return hits;
            case "pull.view": return describe(consumer.viewMessage(q.getString("topic"), q.getString("msg_id")));
            default: throw new IllegalArgumentException("unknown operation " + q.getString("op"));
        }
    }
}
