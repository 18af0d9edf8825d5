import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

public class First {
    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("java-producers");
        producer.setNamesrvAddr(System.getenv().getOrDefault("AEROBEE_NAMESRV_ADDR", "127.0.0.1:9876"));
        producer.start();
        System.out.println(producer.send(new Message("orders", "new", "an order from Java".getBytes())).getSendStatus());
        producer.shutdown();

        CountDownLatch received = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("java-billing");
        consumer.setNamesrvAddr(System.getenv().getOrDefault("AEROBEE_NAMESRV_ADDR", "127.0.0.1:9876"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("orders", "new");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> System.out.println("received " + new String(message.getBody())));
            received.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        received.await();
        consumer.shutdown();
    }
}
