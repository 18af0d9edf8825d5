use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::MessageBuilder;
use rocketmq::{Producer, SimpleConsumer};

#[tokio::main]
async fn main() -> Result<(), ClientError> {
    let mut client = ClientOption::default();
    client.set_access_url(std::env::args().nth(1).expect("an endpoint"));
    client.set_enable_tls(false);

    let mut options = ProducerOption::default();
    options.set_topics(vec!["orders"]);
    let mut producer = Producer::new(options, client.clone())?;
    producer.start().await?;
    let message = MessageBuilder::builder().set_topic("orders").set_body(b"an order from Rust".to_vec());
    producer.send(message.build()?).await?;
    producer.shutdown().await?;

    let mut options = SimpleConsumerOption::default();
    options.set_topics(vec!["orders"]);
    options.set_consumer_group("rust-billing");
    let mut consumer = SimpleConsumer::new(options, client)?;
    consumer.start().await?;
    let all = FilterExpression::new(FilterType::Tag, "*");
    for message in consumer.receive("orders", &all).await? {
        println!("received {}", String::from_utf8_lossy(message.body()));
        consumer.ack(&message).await?;
    }
    consumer.shutdown().await
}
