import java.time.Duration;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

public class Hello {
    public static void main(String[] arguments) throws Exception {
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfiguration client =
            ClientConfiguration.newBuilder().setEndpoints(arguments[0]).enableSsl(false).build();

        try (Producer producer = provider.newProducerBuilder()
                .setClientConfiguration(client).setTopics("orders").build()) {
            byte[] body = "an order from Java".getBytes();
            producer.send(provider.newMessageBuilder().setTopic("orders").setBody(body).build());
        }

        try (SimpleConsumer consumer = provider.newSimpleConsumerBuilder()
                .setClientConfiguration(client).setConsumerGroup("java-billing")
                .setAwaitDuration(Duration.ofSeconds(20))
                .setSubscriptionExpressions(Map.of("orders", FilterExpression.SUB_ALL)).build()) {
            for (MessageView message : consumer.receive(1, Duration.ofSeconds(30))) {
                byte[] body = new byte[message.getBody().remaining()];
                message.getBody().get(body);
                System.out.println("received " + new String(body));
                consumer.ack(message);
            }
        }
    }
}
