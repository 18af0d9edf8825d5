import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Request-reply (`reply.…`) and clients with message trace (`trace.…`) for Driver. */
final class ReplyDriver {
    private final Map<String, Replier> repliers = new ConcurrentHashMap<>();
    private final Map<String, Traced> traced = new ConcurrentHashMap<>();

    private static final class Traced {
        DefaultMQProducer producer;
        DefaultMQPushConsumer consumer;
    }

    /** A consumer that answers each message with "reply to " and its body. */
    private static final class Replier {
        DefaultMQPushConsumer consumer;
        DefaultMQProducer producer;
        volatile String failure = "";
    }

    Object perform(JSONObject q) throws Exception {
        switch (q.getString("op")) {
            case "reply.start": return start(q);
            case "reply.failure": return repliers.get(q.getString("name")).failure;
            case "reply.stop": return stop(q);
            case "reply.request": return request(q);
            case "trace.start": return startTraced(q);
            case "trace.stop": return stopTraced(q);
            default: throw new IllegalArgumentException("unknown operation " + q.getString("op"));
        }
    }

    private static void configure(ClientConfig client, JSONObject q, String instance) {
        client.setNamesrvAddr(q.getString("namesrv"));
        client.setMqClientApiTimeout(60_000); // queries of routes and offsets; 3 s by default
        client.setInstanceName(instance);
        client.setPollNameServerInterval(1000);
        client.setHeartbeatBrokerInterval(5000);
    }

    private Object start(JSONObject q) throws Exception {
        Replier replier = new Replier();
        replier.producer = new DefaultMQProducer(q.getString("group") + "_out");
        configure(replier.producer, q, q.getString("name") + "-out");
        replier.producer.start();
        replier.consumer = new DefaultMQPushConsumer(q.getString("group"));
        configure(replier.consumer, q, q.getString("name"));
        replier.consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        // An answer arrives before the broker confirms it: at the end a listener that still waits is not interrupted.
        replier.consumer.setAwaitTerminationMillisWhenShutdown(5000);
        replier.consumer.subscribe(q.getString("topic"), "*");
        replier.consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    String body = "reply to " + new String(message.getBody(), StandardCharsets.UTF_8);
                    Message reply = MessageUtil.createReplyMessage(message, body.getBytes(StandardCharsets.UTF_8));
                    replier.producer.send(reply, 5000);
                } catch (Exception failure) {
                    replier.failure = failure.toString();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        replier.consumer.start();
        repliers.put(q.getString("name"), replier);
        return null;
    }

    private Object stop(JSONObject q) {
        Replier replier = repliers.remove(q.getString("name"));
        replier.consumer.shutdown();
        replier.producer.shutdown();
        return replier.failure;
    }

    private static Message message(JSONObject q) {
        return new Message(q.getString("topic"), q.getString("tags"), q.getString("keys"),
            q.getString("body").getBytes(StandardCharsets.UTF_8));
    }

    private Object request(JSONObject q) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(q.getString("group"));
        configure(producer, q, q.getString("name"));
        producer.start();
        try {
            Message reply = producer.request(message(q), q.getLongValue("timeout_ms"));
            JSONObject result = new JSONObject();
            result.put("body", new String(reply.getBody(), StandardCharsets.UTF_8));
            result.put("properties", reply.getProperties());
            return result;
        } finally {
            producer.shutdown();
        }
    }

    /** Sends and consumes one message with trace. The clients stay: one that shuts down may lose what it recorded last. */
    private Object startTraced(JSONObject q) throws Exception {
        String name = q.getString("name");
        Traced traced = new Traced();
        traced.producer = new DefaultMQProducer(q.getString("producer_group"));
        traced.producer.setEnableTrace(true);
        configure(traced.producer, q, name + "-producer");
        traced.producer.setSendMsgTimeout(10_000);
        traced.producer.start();
        CountDownLatch consumed = new CountDownLatch(1);
        traced.consumer = new DefaultMQPushConsumer(q.getString("group"));
        traced.consumer.setEnableTrace(true);
        configure(traced.consumer, q, name + "-consumer");
        traced.consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        traced.consumer.subscribe(q.getString("topic"), "*");
        traced.consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            consumed.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        traced.consumer.start();
        this.traced.put(name, traced);
        SendResult sent = traced.producer.send(message(q));
        if (!consumed.await(30, TimeUnit.SECONDS)) {
            throw new IllegalStateException("the message was not consumed");
        }
        return sent.getMsgId();
    }

    private Object stopTraced(JSONObject q) {
        Traced traced = this.traced.remove(q.getString("name"));
        traced.consumer.shutdown();
        traced.producer.shutdown();
        return null;
    }
}
