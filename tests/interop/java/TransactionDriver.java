import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;

/** Transaction producers (`trans.…`) for Driver. A producer answers checks as its `answers` say, by message body. */
final class TransactionDriver {
    private final Map<String, Member> members = new ConcurrentHashMap<>();

    private static final class Member implements TransactionListener {
        TransactionMQProducer producer;
        JSONObject answers;
        final List<JSONObject> checks = new ArrayList<>();

        @Override public LocalTransactionState executeLocalTransaction(Message message, Object state) {
            return LocalTransactionState.valueOf((String) state);
        }

        @Override public synchronized LocalTransactionState checkLocalTransaction(MessageExt message) {
            JSONObject check = new JSONObject();
            check.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
            check.put("topic", message.getTopic());
            check.put("queue", message.getQueueId());
            check.put("transaction_id", message.getTransactionId());
            check.put("times", message.getProperty(MessageConst.PROPERTY_TRANSACTION_CHECK_TIMES));
            checks.add(check);
            String answer = answers == null ? null : answers.getString(check.getString("body"));
            return answer == null ? LocalTransactionState.UNKNOW : LocalTransactionState.valueOf(answer);
        }
    }

    Object perform(JSONObject q) throws Exception {
        switch (q.getString("op")) {
            case "trans.start": return start(q);
            case "trans.send": return send(q);
            case "trans.checks": return checks(members.get(q.getString("name")));
            case "trans.stop": members.remove(q.getString("name")).producer.shutdown(); return null;
            default: throw new IllegalArgumentException("unknown operation " + q.getString("op"));
        }
    }

    private Object start(JSONObject q) throws Exception {
        Member member = new Member();
        member.answers = q.getJSONObject("answers");
        TransactionMQProducer producer = new TransactionMQProducer(q.getString("group"));
        producer.setNamesrvAddr(q.getString("namesrv"));
        producer.setMqClientApiTimeout(60_000); // queries of routes and offsets; 3 s by default
        producer.setInstanceName(q.getString("name"));
        producer.setPollNameServerInterval(1000);
        producer.setHeartbeatBrokerInterval(1000);
        producer.setSendMsgTimeout(10_000);
        producer.setTransactionListener(member);
        producer.start();
        if (q.containsKey("topic")) {
            producer.fetchPublishMessageQueues(q.getString("topic"));  // so that its heartbeats reach the broker
            producer.getDefaultMQProducerImpl().getMqClientFactory().updateTopicRouteInfoFromNameServer(q.getString("topic"));
            producer.getDefaultMQProducerImpl().getMqClientFactory().sendHeartbeatToAllBrokerWithLock();
        }
        member.producer = producer;
        members.put(q.getString("name"), member);
        return null;
    }

    private Object send(JSONObject q) throws Exception {
        Message message = new Message(q.getString("topic"), "x", q.getString("keys"),
            q.getString("body").getBytes(StandardCharsets.UTF_8));
        if (q.containsKey("delay_level")) {
            message.setDelayTimeLevel(q.getIntValue("delay_level"));
        }
        if (q.containsKey("immunity_s")) {
            message.putUserProperty(MessageConst.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS, q.getString("immunity_s"));
        }
        TransactionSendResult result = members.get(q.getString("name")).producer
            .sendMessageInTransaction(message, q.getString("state"));
        JSONObject o = new JSONObject();
        o.put("status", result.getSendStatus().name());
        o.put("state", result.getLocalTransactionState().name());
        o.put("transaction_id", result.getTransactionId());
        o.put("msg_id", result.getMsgId());
        return o;
    }

    private static Object checks(Member member) {
        synchronized (member) {
            return new ArrayList<>(member.checks);
        }
    }
}
