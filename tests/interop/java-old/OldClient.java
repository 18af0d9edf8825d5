import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** An old Java client with the arguments and lines of go/main.go. */
public class OldClient {
    public static void main(String[] arguments) throws Exception {
        String namesrv = arguments[0];
        String topic = arguments[1];
        String group = arguments[2];
        int count = arguments.length > 4 ? Integer.parseInt(arguments[4]) : 0;
        switch (arguments[3]) {
            case "first": send(namesrv, topic, group, count); break;
            case "consume": consume(namesrv, topic, group, count); break;
            default: transact(namesrv, topic, group);
        }
        System.exit(0);
    }

    private static synchronized void say(Object... fields) {
        JSONObject line = new JSONObject();
        for (int i = 0; i < fields.length; i += 2) {
            line.put((String) fields[i], fields[i + 1]);
        }
        System.out.println(line.toJSONString());
    }

    private static void send(String namesrv, String topic, String group, int count) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        for (int i = 0; i < count; i++) {
            String body = i == count - 1 ? "again" : "m" + i;
            SendResult result = producer.send(new Message(topic, "go", "key" + i, body.getBytes(StandardCharsets.UTF_8)));
            say("id", result.getMsgId(), "queue", result.getMessageQueue().getQueueId(), "status", result.getSendStatus().ordinal());
        }
        producer.shutdown();
    }

    private static void consume(String namesrv, String topic, String group, int count) throws Exception {
        CountDownLatch left = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "go");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            ConsumeConcurrentlyStatus status = ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            for (MessageExt message : messages) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                say("body", body, "tag", message.getTags(), "keys", message.getKeys(), "attempt", message.getReconsumeTimes());
                left.countDown();
                if (body.equals("again") && message.getReconsumeTimes() == 0) {
                    status = ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return status;
        });
        consumer.start();
        left.await(90, TimeUnit.SECONDS);
        Thread.sleep(1_000);
        consumer.shutdown();
    }

    private static void transact(String namesrv, String topic, String group) throws Exception {
        CountDownLatch checked = new CountDownLatch(1);
        TransactionMQProducer producer = new TransactionMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(10_000);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                switch (new String(message.getBody(), StandardCharsets.UTF_8)) {
                    case "commit": return LocalTransactionState.COMMIT_MESSAGE;
                    case "rollback": return LocalTransactionState.ROLLBACK_MESSAGE;
                    default: return LocalTransactionState.UNKNOW;
                }
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                say("checked", body);
                if (body.equals("checked")) {
                    checked.countDown();
                }
                return body.equals("rollback") ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        for (String body : new String[] {"commit", "rollback", "checked"}) {
            producer.sendMessageInTransaction(new Message(topic, "go", body.getBytes(StandardCharsets.UTF_8)), null);
        }
        checked.await(60, TimeUnit.SECONDS);
        Thread.sleep(2_000);
        producer.shutdown();
    }
}
