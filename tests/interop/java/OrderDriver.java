import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/**
 * Push consumers whose handlers fail on demand (`order.…`) for Driver: orderly ones that suspend, concurrent ones that
 * send back. `fail` maps a body to how many of its deliveries fail.
 */
final class OrderDriver {
    private final Map<String, Member> members = new ConcurrentHashMap<>();

    /** A consumer, what it received, and what still has to fail. */
    private static final class Member {
        DefaultMQPushConsumer consumer;
        final List<JSONObject> received = new ArrayList<>();
        final Map<String, Integer> fail = new ConcurrentHashMap<>();
        long pauseMs;

        /** Note the messages; true when one of them has to fail. */
        boolean take(List<MessageExt> messages) throws InterruptedException {
            boolean failed = false;
            for (MessageExt message : messages) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                JSONObject o = new JSONObject();
                o.put("body", body);
                o.put("topic", message.getTopic());
                o.put("broker", message.getBrokerName());
                o.put("queue", message.getQueueId());
                o.put("offset", message.getQueueOffset());
                o.put("msg_id", message.getMsgId());
                o.put("reconsume_times", message.getReconsumeTimes());
                o.put("properties", message.getProperties());
                int left = fail.getOrDefault(body, 0);
                if (left > 0) {
                    fail.put(body, left - 1);
                    failed = true;
                }
                synchronized (received) {
                    received.add(o);
                    received.notifyAll();
                }
            }
            if (pauseMs > 0) {
                Thread.sleep(pauseMs);
            }
            return failed;
        }
    }

    Object perform(JSONObject q) throws Exception {
        switch (q.getString("op")) {
            case "order.start": return start(q);
            case "order.received": return received(q);
            case "order.queues": return queues(q);
            case "order.stop": members.remove(q.getString("name")).consumer.shutdown(); return null;
            default: throw new IllegalArgumentException("unknown operation " + q.getString("op"));
        }
    }

    private Object start(JSONObject q) throws Exception {
        Member member = new Member();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(q.getString("group"));
        consumer.setNamesrvAddr(q.getString("namesrv"));
        consumer.setMqClientApiTimeout(60_000); // queries of routes and offsets; 3 s by default
        consumer.setInstanceName(q.getString("name"));
        consumer.setPollNameServerInterval(1000);
        consumer.setHeartbeatBrokerInterval(2000);
        consumer.setPersistConsumerOffsetInterval(500);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMessageModel(q.getBooleanValue("broadcast") ? MessageModel.BROADCASTING : MessageModel.CLUSTERING);
        consumer.setMaxReconsumeTimes(q.getIntValue("max_reconsume", -1));
        consumer.setSuspendCurrentQueueTimeMillis(q.getLongValue("suspend_ms", 50));
        consumer.subscribe(q.getString("topic"), "*");
        member.pauseMs = q.getLongValue("pause_ms", 0);
        JSONObject fail = q.getJSONObject("fail");
        if (fail != null) {
            fail.forEach((body, times) -> member.fail.put(body, ((Number) times).intValue()));
        }
        if (q.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                try {
                    return member.take(messages) ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
                } catch (InterruptedException end) {
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(q.getIntValue("level", 0));
                try {
                    return member.take(messages) ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                } catch (InterruptedException end) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            });
        }
        member.consumer = consumer;
        members.put(q.getString("name"), member);
        consumer.start();
        return null;
    }

    private Object received(JSONObject q) throws Exception {
        Member member = members.get(q.getString("name"));
        long end = System.currentTimeMillis() + q.getLongValue("timeout_ms", 0);
        synchronized (member.received) {
            while (member.received.size() < q.getIntValue("count", 0)) {
                long left = end - System.currentTimeMillis();
                if (left <= 0) {
                    break;
                }
                member.received.wait(left);
            }
            return new ArrayList<>(member.received);
        }
    }

    /** The queues that a consumer has and works on; of an orderly one those that it has locked. */
    private Object queues(JSONObject q) {
        TreeSet<MessageQueue> found = new TreeSet<>();
        DefaultMQPushConsumer consumer = members.get(q.getString("name")).consumer;
        boolean orderly = q.getBooleanValue("orderly");
        consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().forEach((queue, process) -> {
            if (queue.getTopic().equals(q.getString("topic")) && !process.isDropped() && (!orderly || process.isLocked())) {
                found.add(queue);
            }
        });
        List<List<Object>> list = new ArrayList<>();
        for (MessageQueue queue : found) {
            list.add(List.of(queue.getTopic(), queue.getBrokerName(), queue.getQueueId()));
        }
        return list;
    }
}
