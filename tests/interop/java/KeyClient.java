import com.alibaba.fastjson2.JSONObject;
import java.util.Set;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * A client with keys, right or wrong, or without: arguments NameServer, topic, group, access key (empty: none), secret key.
 * Prints one line {"send", "pull"}: "ok", or the response code with which it was refused.
 */
public class KeyClient {
    public static void main(String[] arguments) throws Exception {
        String namesrv = arguments[0], topic = arguments[1], group = arguments[2];
        RPCHook hook = arguments[3].isEmpty() ? null : new AclClientRPCHook(new SessionCredentials(arguments[3], arguments[4]));
        JSONObject found = new JSONObject();
        found.put("send", send(namesrv, topic, hook));
        found.put("pull", pull(namesrv, topic, group, hook));
        System.out.println(found.toJSONString());
        System.exit(0);
    }

    private static String send(String namesrv, String topic, RPCHook hook) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("key_client", hook);
        producer.setNamesrvAddr(namesrv);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setSendMsgTimeout(60_000);
        producer.setMqClientApiTimeout(60_000); // the query of the route
        producer.start();
        try {
            producer.send(new Message(topic, "java".getBytes()));
            return "ok";
        } catch (Exception error) {
            return refusal(error);
        } finally {
            producer.shutdown();
        }
    }

    private static String pull(String namesrv, String topic, String group, RPCHook hook) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group, hook);
        consumer.setNamesrvAddr(namesrv);
        consumer.setMqClientApiTimeout(60_000);
        consumer.start();
        try {
            Set<MessageQueue> queues = consumer.fetchSubscribeMessageQueues(topic);
            for (MessageQueue queue : queues) {
                PullResult result = consumer.pull(queue, "*", 0, 32, 60_000);
                if (result.getMsgFoundList() != null) return "ok";
            }
            return "nothing";
        } catch (Exception error) {
            return refusal(error);
        } finally {
            consumer.shutdown();
        }
    }

    private static String refusal(Throwable error) {
        for (Throwable each = error; each != null; each = each.getCause()) {
            if (each instanceof MQBrokerException) return String.valueOf(((MQBrokerException) each).getResponseCode());
        }
        return error.toString();
    }
}
