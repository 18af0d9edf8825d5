import com.alibaba.fastjson2.JSONObject;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.OffsetOption;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Every kind of message of RocketMQ's gRPC protocol, sent and received by RocketMQ's Java client through a proxy.
 *
 * Arguments: the proxy's host:port, a prefix of topic and group names, and the scenarios to run (all without one). Four run
 * side by side; each prints one line {"scenario": name, "outcome": text}, which is the same at every broker that does what
 * RocketMQ's does. Topic and group of a scenario are named prefix_scenario.
 */
public class GrpcScenarios {
    private static final Duration WAIT = Duration.ofSeconds(3);
    private static final int PATIENCE_S = 240;
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private final ClientConfiguration configuration;
    private final String prefix;

    private GrpcScenarios(String endpoint, String prefix) {
        this.configuration = ClientConfiguration.newBuilder().setEndpoints(endpoint).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(10)).build();
        this.prefix = prefix;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        GrpcScenarios all = new GrpcScenarios(arguments[0], arguments[1]);
        List<String> wanted = Arrays.asList(arguments).subList(2, arguments.length);
        ExecutorService threads = Executors.newFixedThreadPool(4);
        for (Map.Entry<String, Callable<String>> each : all.scenarios().entrySet()) {
            if (!wanted.isEmpty() && !wanted.contains(each.getKey())) {
                continue;
            }
            threads.submit(() -> {
                String outcome;
                try {
                    outcome = each.getValue().call();
                } catch (Throwable error) {
                    outcome = "failed: " + error;
                    error.printStackTrace();
                }
                JSONObject line = new JSONObject();
                line.put("scenario", each.getKey());
                line.put("outcome", outcome);
                synchronized (out) {
                    out.println(line.toJSONString());
                }
            });
        }
        threads.shutdown();
        threads.awaitTermination(900, TimeUnit.SECONDS);
        System.exit(0);
    }

    private Map<String, Callable<String>> scenarios() {
        Map<String, Callable<String>> all = new LinkedHashMap<>();
        // The slow ones first, or all would wait for them at the end.
        all.put("deadletter", this::deadLetter);
        all.put("transaction", this::transaction);
        all.put("recall", this::recall);
        all.put("simple", this::simple);
        all.put("push", this::push);
        all.put("lite", this::lite);
        all.put("tags", () -> filtered("tags", new FilterExpression("a || c", FilterExpressionType.TAG)));
        all.put("sql", () -> filtered("sql", new FilterExpression("number >= 3 AND colour = 'red'", FilterExpressionType.SQL92)));
        all.put("fifo", this::fifo);
        all.put("retry", this::retry);
        all.put("delay", this::delay);
        all.put("big", this::big);
        all.put("priority", this::priority);
        all.put("twopushes", this::twoPushes);
        all.put("invisible", this::invisible);
        all.put("nowhere", () -> refused(message(name("nowhere"), "x")));
        all.put("wrongtype", () -> refused(message(name("wrongtype"), "x").setMessageGroup("a group in a topic of normal messages")));
        return all;
    }

    // --- scenarios

    private String simple() throws Exception {
        String topic = name("simple");
        try (Producer producer = producer(topic); SimpleConsumer consumer = simpleConsumer(topic, FilterExpression.SUB_ALL)) {
            for (int i = 0; i < 6; i++) {
                producer.send(message(topic, "m" + i).setTag("tag" + i).setKeys("key" + i, "second").addProperty("p", "v" + i).build());
            }
            List<String> found = receive(consumer, 6, view -> true, view -> text(view) + "|" + view.getTag().orElse("-") + "|"
                + String.join(",", view.getKeys()) + "|" + view.getProperties() + "|" + view.getTopic().equals(topic)
                + "|" + view.getDeliveryAttempt());
            Collections.sort(found);
            return found + " then " + patiently(consumer, 16, Duration.ofSeconds(15)).size();
        }
    }

    private String push() throws Exception {
        String topic = name("push");
        Seen seen = new Seen();
        try (Producer producer = producer(topic); PushConsumer consumer = pushConsumer(topic, seen, view -> ConsumeResult.SUCCESS)) {
            for (int i = 0; i < 12; i++) {
                producer.send(message(topic, "m" + i).build());
            }
            return seen.sorted(12);
        }
    }

    /** Two of three lite topics. The client consumes a batch with several threads, so its messages are sorted. */
    private String lite() throws Exception {
        String topic = name("lite");
        Map<String, List<String>> found = new TreeMap<>();
        Seen seen = new Seen();
        try (Producer producer = producer(topic);
             LitePushConsumer consumer = PROVIDER.newLitePushConsumerBuilder().setClientConfiguration(configuration)
                 .setConsumerGroup("G" + topic).bindTopic(topic).setMessageListener(view -> {
                     String lite = view.getLiteTopic().orElse("-");
                     synchronized (found) {
                         found.computeIfAbsent(lite, name -> new ArrayList<>()).add(text(view));
                     }
                     seen.add(lite + text(view));
                     return ConsumeResult.SUCCESS;
                 }).build()) {
            consumer.subscribeLite("a", OffsetOption.MIN_OFFSET);
            consumer.subscribeLite("b", OffsetOption.MIN_OFFSET);
            consumer.subscribeLite("gone", OffsetOption.MIN_OFFSET);
            consumer.unsubscribeLite("gone");
            for (int i = 0; i < 12; i++) {
                producer.send(message(topic, "m" + i).setLiteTopic(new String[] {"a", "b", "gone"}[i % 3]).build());
            }
            seen.sorted(8);
            found.values().forEach(Collections::sort);
            return found + " of " + new java.util.TreeSet<>(consumer.getLiteTopicSet());
        }
    }

    private String filtered(String scenario, FilterExpression expression) throws Exception {
        String topic = name(scenario);
        try (Producer producer = producer(topic); SimpleConsumer consumer = simpleConsumer(topic, expression)) {
            for (int i = 0; i < 8; i++) {
                producer.send(message(topic, "m" + i).setTag("abcd".substring(i % 4, i % 4 + 1))
                    .addProperty("number", String.valueOf(i)).addProperty("colour", i % 2 == 1 ? "red" : "blue").build());
            }
            int wanted = scenario.equals("tags") ? 4 : 3;
            List<String> found = receive(consumer, wanted, view -> true, GrpcScenarios::text);
            Collections.sort(found);
            return found + " then " + patiently(consumer, 16, Duration.ofSeconds(15)).size();
        }
    }

    private String fifo() throws Exception {
        String topic = name("fifo");
        Map<String, List<String>> orders = Collections.synchronizedMap(new TreeMap<>());
        Seen seen = new Seen();
        try (Producer producer = producer(topic);
             PushConsumer consumer = pushConsumer(topic, seen, view -> {
                 orders.computeIfAbsent(view.getMessageGroup().orElse("-"), key -> Collections.synchronizedList(new ArrayList<>()))
                     .add(text(view));
                 return ConsumeResult.SUCCESS;
             })) {
            for (int i = 0; i < 18; i++) {
                producer.send(message(topic, "m" + i).setMessageGroup("group" + i % 3).build());
            }
            seen.sorted(18);
            return orders.toString();
        }
    }

    private String retry() throws Exception {
        String topic = name("retry");
        Seen seen = new Seen();
        try (Producer producer = producer(topic);
             PushConsumer consumer = pushConsumer(topic, seen, view ->
                 text(view).equals("m1") && view.getDeliveryAttempt() == 1 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS)) {
            for (int i = 0; i < 3; i++) {
                producer.send(message(topic, "m" + i).build());
            }
            return seen.sorted(4);
        }
    }

    private String delay() throws Exception {
        String topic = name("delay");
        try (Producer producer = producer(topic); SimpleConsumer consumer = simpleConsumer(topic, FilterExpression.SUB_ALL)) {
            long due = System.currentTimeMillis() + 4_000;
            producer.send(message(topic, "later").setDeliveryTimestamp(due).build());
            List<String> found = receive(consumer, 1, view -> true,
                view -> text(view) + "|" + (System.currentTimeMillis() >= due - 1_000) + "|" + view.getDeliveryTimestamp().isPresent());
            return found.toString();
        }
    }

    private String recall() throws Exception {
        String topic = name("recall");
        try (Producer producer = producer(topic); SimpleConsumer consumer = simpleConsumer(topic, FilterExpression.SUB_ALL)) {
            long now = System.currentTimeMillis();
            SendReceipt receipt = producer.send(message(topic, "never").setDeliveryTimestamp(now + 12_000).build());
            producer.send(message(topic, "after").setDeliveryTimestamp(now + 15_000).build());
            String recalled = producer.recallMessage(topic, receipt.getRecallHandle()).getMessageId().toString();
            List<String> found = receive(consumer, 1, view -> true, GrpcScenarios::text);
            return recalled.equals(receipt.getMessageId().toString()) + " " + found;
        }
    }

    private String transaction() throws Exception {
        String topic = name("transaction");
        List<String> checked = Collections.synchronizedList(new ArrayList<>());
        try (Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic)
                 .setTransactionChecker(view -> {
                     checked.add(text(view));
                     return text(view).equals("rollback") ? TransactionResolution.ROLLBACK : TransactionResolution.COMMIT;
                 }).build();
             SimpleConsumer consumer = simpleConsumer(topic, FilterExpression.SUB_ALL)) {
            // The undecided one first: RocketMQ's check of half messages burns a core for up to a minute while one that is
            // undecided lies behind decided ones (TransactionalMessageServiceImpl.check goes round without a pause then).
            producer.send(message(topic, "checked").build(), producer.beginTransaction());
            List<String> found = new ArrayList<>(receive(consumer, 1, view -> true, GrpcScenarios::text));
            for (String body : new String[] {"rollback", "commit"}) {
                Transaction transaction = producer.beginTransaction();
                producer.send(message(topic, body).build(), transaction);
                if (body.equals("commit")) {
                    transaction.commit();
                } else {
                    transaction.rollback();
                }
            }
            found.addAll(receive(consumer, 1, view -> true, GrpcScenarios::text));
            return found + " checked " + checked.contains("checked");
        }
    }

    private String big() throws Exception {
        String topic = name("big");
        try (Producer producer = producer(topic); SimpleConsumer consumer = simpleConsumer(topic, FilterExpression.SUB_ALL)) {
            byte[] body = new byte[3 << 20];
            new java.util.Random(5).nextBytes(body);
            producer.send(PROVIDER.newMessageBuilder().setTopic(topic).setBody(body).build());
            CRC32 crc = new CRC32();
            crc.update(body);
            return receive(consumer, 1, view -> true, view -> {
                byte[] got = bytes(view);
                CRC32 other = new CRC32();
                other.update(got);
                return got.length + "|" + (other.getValue() == crc.getValue());
            }).toString();
        }
    }

    private String priority() throws Exception {
        String topic = name("priority");
        try (Producer producer = producer(topic)) {
            for (int priority : new int[] {0, 2, 1, 3, 0, 3}) {
                producer.send(message(topic, "p" + priority).setPriority(priority).build());
            }
        }
        try (SimpleConsumer consumer = simpleConsumer(topic, FilterExpression.SUB_ALL)) {
            List<String> found = new ArrayList<>();
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
            while (found.size() < 6 && System.nanoTime() < end) {
                for (MessageView view : patiently(consumer, 1, Duration.ofSeconds(60))) {
                    found.add(text(view) + "|" + view.getPriority().orElse(-1));
                    consumer.ack(view);
                }
            }
            return found.toString();
        }
    }

    private String deadLetter() throws Exception {
        String topic = name("deadletter");
        Seen seen = new Seen();
        try (Producer producer = producer(topic); PushConsumer consumer = pushConsumer(topic, seen, view -> ConsumeResult.FAILURE)) {
            producer.send(message(topic, "bad").setKeys("k").build());
            String attempts = seen.sorted(2);
            Thread.sleep(30_000); // the try that goes to the dead letters instead
            return attempts + " then " + seen.sorted(2);
        }
    }

    private String twoPushes() throws Exception {
        String topic = name("twopushes");
        Seen seen = new Seen();
        try (Producer producer = producer(topic);
             PushConsumer one = pushConsumer(topic, seen, view -> ConsumeResult.SUCCESS);
             PushConsumer two = pushConsumer(topic, seen, view -> ConsumeResult.SUCCESS)) {
            for (int i = 0; i < 40; i++) {
                producer.send(message(topic, String.format("m%02d", i)).build());
            }
            return seen.sorted(40);
        }
    }

    private String invisible() throws Exception {
        String topic = name("invisible");
        try (Producer producer = producer(topic); SimpleConsumer consumer = simpleConsumer(topic, FilterExpression.SUB_ALL)) {
            producer.send(message(topic, "again").build());
            List<String> found = new ArrayList<>();
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
            while (found.size() < 2 && System.nanoTime() < end) {
                for (MessageView view : patiently(consumer, 4, Duration.ofSeconds(60))) {
                    found.add(text(view) + "|" + view.getDeliveryAttempt());
                    if (found.size() == 1) {
                        consumer.changeInvisibleDuration(view, Duration.ofSeconds(10));
                    } else {
                        consumer.ack(view);
                    }
                }
            }
            return found.toString();
        }
    }

    /** What a send that cannot be ends with; the time-outs of a busy machine are no answer. */
    private String refused(MessageBuilder message) throws Exception {
        for (int attempt = 0; ; attempt++) {
            try (Producer producer = producer()) {
                producer.send(message.build());
                return "sent";
            } catch (Exception error) {
                Throwable cause = error;
                while (cause.getCause() != null) {
                    cause = cause.getCause();
                }
                if (attempt == 19 || !cause.toString().contains("imeout")) {
                    return cause.getClass().getSimpleName();
                }
                Thread.sleep(1_000);
            }
        }
    }

    // --- helpers

    private String name(String scenario) {
        return prefix + "_" + scenario;
    }

    private Producer producer(String... topics) throws Exception {
        return PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topics).build();
    }

    private SimpleConsumer simpleConsumer(String topic, FilterExpression expression) throws Exception {
        return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup("G" + topic)
            .setAwaitDuration(WAIT).setSubscriptionExpressions(Collections.singletonMap(topic, expression)).build();
    }

    private PushConsumer pushConsumer(String topic, Seen seen, java.util.function.Function<MessageView, ConsumeResult> handler)
        throws Exception {
        return PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup("G" + topic)
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
            .setMessageListener(view -> {
                ConsumeResult result = handler.apply(view);
                seen.add(text(view) + "|" + view.getDeliveryAttempt());
                return result;
            }).build();
    }

    private static MessageBuilder message(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    private static List<String> receive(SimpleConsumer consumer, int count, Predicate<MessageView> wanted,
        java.util.function.Function<MessageView, String> describe) throws Exception {
        List<String> found = new ArrayList<>();
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        while (found.size() < count && System.nanoTime() < end) {
            for (MessageView view : patiently(consumer, 16, Duration.ofSeconds(60))) {
                found.add(describe.apply(view));
                consumer.ack(view);
            }
        }
        return found;
    }

    /** Receive until the proxy has an answer, which gives each of its calls to a broker two seconds. */
    private static List<MessageView> patiently(SimpleConsumer consumer, int count, Duration invisible) throws Exception {
        for (int attempt = 0; ; attempt++) {
            try {
                return consumer.receive(count, invisible);
            } catch (Exception error) {
                if (attempt == 19) {
                    throw error;
                }
                Thread.sleep(1_000);
            }
        }
    }

    private static byte[] bytes(MessageView view) {
        ByteBuffer buffer = view.getBody();
        byte[] data = new byte[buffer.remaining()];
        buffer.get(data);
        return data;
    }

    private static String text(MessageView view) {
        return new String(bytes(view), StandardCharsets.UTF_8);
    }

    /** What push consumers were given. */
    private static final class Seen {
        private final List<String> items = new ArrayList<>();

        synchronized void add(String item) {
            items.add(item);
            notifyAll();
        }

        /** All items in order, after waiting for `count` of them and a moment for one too many. */
        synchronized String sorted(int count) throws InterruptedException {
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
            while (items.size() < count && System.nanoTime() < end) {
                wait(200);
            }
            wait(1_500);
            List<String> copy = new ArrayList<>(items);
            Collections.sort(copy);
            return copy.toString();
        }
    }
}
