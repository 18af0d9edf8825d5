import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Push consumers that let the broker share out the queues (clientRebalance=false), and so pop when the request mode of
 * their group and topic is POP. Part of Driver: pop.start, pop.received, pop.stop.
 */
final class PopDriver {
    private final Map<String, Member> members = new ConcurrentHashMap<>();

    /** A consumer and what it received. */
    private static final class Member {
        DefaultMQPushConsumer consumer;
        final List<JSONObject> received = new ArrayList<>();
    }

    Object perform(JSONObject q) throws Exception {
        switch (q.getString("op")) {
            case "pop.start": return start(q);
            case "pop.received": return received(q);
            case "pop.stop": members.remove(q.getString("name")).consumer.shutdown(); return null;
            default: throw new IllegalArgumentException("unknown operation " + q.getString("op"));
        }
    }

    private Object start(JSONObject q) throws Exception {
        Member member = new Member();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(q.getString("group"));
        consumer.setNamesrvAddr(q.getString("namesrv"));
        consumer.setMqClientApiTimeout(60_000); // queries of routes and offsets; 3 s by default
        consumer.setInstanceName(q.getString("name"));
        consumer.setClientRebalance(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPopInvisibleTime(q.getLongValue("invisible_ms", 60_000));
        consumer.setPopBatchNums(q.getIntValue("batch", 32));
        consumer.subscribe(q.getString("topic"), q.containsKey("tags") ? q.getString("tags") : "*");
        String failBody = q.getString("fail_once");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            boolean failed = false;
            synchronized (member.received) {
                for (MessageExt message : messages) {
                    member.received.add(describe(message));
                    failed |= message.getReconsumeTimes() == 0
                        && new String(message.getBody(), StandardCharsets.UTF_8).equals(failBody);
                }
                member.received.notifyAll();
            }
            if (failed) {
                context.setDelayLevelWhenNextConsume(1);
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        member.consumer = consumer;
        members.put(q.getString("name"), member);
        consumer.start();
        return null;
    }

    private Object received(JSONObject q) throws Exception {
        Member member = members.get(q.getString("name"));
        int count = q.getIntValue("count", 0);
        long end = System.currentTimeMillis() + q.getLongValue("timeout_ms", 0);
        synchronized (member.received) {
            while (member.received.size() < count && System.currentTimeMillis() < end) {
                member.received.wait(Math.max(1, end - System.currentTimeMillis()));
            }
            return new ArrayList<>(member.received);
        }
    }

    private static JSONObject describe(MessageExt message) {
        JSONObject o = new JSONObject();
        o.put("topic", message.getTopic());
        o.put("queue", message.getQueueId());
        o.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        o.put("reconsume_times", message.getReconsumeTimes());
        o.put("properties", message.getProperties());
        return o;
    }
}
