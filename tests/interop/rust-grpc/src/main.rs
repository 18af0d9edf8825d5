//! The kinds of messages that RocketMQ's official Rust client 5.0.0 knows, sent and received by it: no push, priority, recall, lite
//! topics, and no change of the invisible time.
//!
//! Arguments and outcomes as go-grpc/main.go.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};

const PATIENCE: Duration = Duration::from_secs(120);
const INVISIBLE: Duration = Duration::from_secs(30);

/// Repeat a call until it works: RocketMQ's proxy gives up soon where the machine is busy.
macro_rules! patiently {
    ($call:expr) => {{
        let mut attempt = 0;
        loop {
            match $call {
                Ok(found) => break found,
                Err(error) if attempt == 19 => panic!("{error}"),
                Err(_) => attempt += 1,
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }};
}

fn client(endpoint: &str) -> ClientOption {
    let mut option = ClientOption::default();
    option.set_access_url(endpoint);
    option.set_enable_tls(false);
    option.set_timeout(Duration::from_secs(10));
    option.set_long_polling_timeout(Duration::from_secs(8));
    option
}

fn publishing(topic: &str) -> ProducerOption {
    let mut option = ProducerOption::default();
    option.set_topics(vec![topic]);
    option
}

async fn started_producer(endpoint: &str, topic: &str) -> Producer {
    patiently!({
        let mut made = Producer::new(publishing(topic), client(endpoint)).expect("options");
        made.start().await.map(|()| made)
    })
}

async fn started_consumer(endpoint: &str, topic: &str) -> SimpleConsumer {
    patiently!({
        let mut option = SimpleConsumerOption::default();
        option.set_topics(vec![topic]);
        option.set_consumer_group(format!("G{topic}"));
        let mut made = SimpleConsumer::new(option, client(endpoint)).expect("options");
        made.start().await.map(|()| made)
    })
}

fn text(view: &MessageView) -> String {
    String::from_utf8_lossy(view.body()).into_owned()
}

/// Views of `count` messages, each body once, acknowledged.
async fn receive(
    consumer: &SimpleConsumer,
    topic: &str,
    expression: &str,
    count: usize,
) -> Vec<MessageView> {
    let filter = FilterExpression::new(FilterType::Tag, expression);
    let mut found: Vec<MessageView> = Vec::new();
    let end = Instant::now() + PATIENCE;
    while found.len() < count && Instant::now() < end {
        // What finds nothing until its time is over is an error of this client, too.
        let Ok(views) = consumer.receive_with(topic, &filter, 16, INVISIBLE).await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        for view in views {
            patiently!(consumer.ack(&view).await);
            if !found.iter().any(|known| known.body() == view.body()) {
                found.push(view);
            }
        }
    }
    found
}

async fn send(producer: &Producer, make: impl Fn() -> MessageBuilder) {
    patiently!(producer.send(make().build().expect("message")).await);
}

fn plain(topic: &str, body: &str) -> MessageBuilder {
    MessageBuilder::builder().set_topic(topic).set_body(body.as_bytes().to_vec())
}

fn sorted(mut items: Vec<String>) -> String {
    items.sort();
    items.join(" ")
}

async fn simple(endpoint: &str, topic: &str) -> String {
    let producer = started_producer(endpoint, topic).await;
    let consumer = started_consumer(endpoint, topic).await;
    for number in 0..4 {
        send(&producer, || {
            plain(topic, &format!("m{number}"))
                .set_tag(format!("tag{number}"))
                .set_keys(vec![format!("key{number}"), "second".to_string()])
                .set_properties([("p", format!("v{number}"))].into())
        })
        .await;
    }
    let views = receive(&consumer, topic, "*", 4).await;
    let told = |view: &MessageView| {
        format!(
            "{}|{}|{}|{}|{}",
            text(view),
            view.tag().unwrap_or(""),
            view.keys().join(","),
            view.properties().get("p").map_or("", String::as_str),
            view.delivery_attempt()
        )
    };
    sorted(views.iter().map(told).collect())
}

async fn tags(endpoint: &str, topic: &str) -> String {
    let producer = started_producer(endpoint, topic).await;
    let consumer = started_consumer(endpoint, topic).await;
    for number in 0..8 {
        send(&producer, || {
            plain(topic, &format!("m{number}")).set_tag(["a", "b", "c", "d"][number % 4])
        })
        .await;
    }
    sorted(receive(&consumer, topic, "a || c", 4).await.iter().map(text).collect())
}

async fn fifo(endpoint: &str, topic: &str) -> String {
    let producer = started_producer(endpoint, topic).await;
    let consumer = started_consumer(endpoint, topic).await;
    for number in 0..9 {
        send(&producer, || {
            MessageBuilder::fifo_message_builder(
                topic,
                format!("m{number}").into_bytes(),
                format!("group{}", number % 3),
            )
        })
        .await;
    }
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for view in receive(&consumer, topic, "*", 9).await {
        let group = view.message_group().unwrap_or("").to_string();
        groups.entry(group).or_default().push(text(&view));
    }
    let told = groups.iter().map(|(name, bodies)| format!("{name} {}", bodies.join(" ")));
    told.collect::<Vec<_>>().join("; ")
}

async fn delay(endpoint: &str, topic: &str) -> String {
    let producer = started_producer(endpoint, topic).await;
    let consumer = started_consumer(endpoint, topic).await;
    let due = SystemTime::now() + Duration::from_secs(4);
    let seconds = due.duration_since(UNIX_EPOCH).expect("time").as_secs() as i64;
    send(&producer, || {
        MessageBuilder::delay_message_builder(topic, b"later".to_vec(), seconds)
    })
    .await;
    let views = receive(&consumer, topic, "*", 1).await;
    let is_late = SystemTime::now() + Duration::from_millis(2_500) >= due;
    let told = views.iter().map(|view| format!("{} {is_late}", text(view)));
    told.collect::<Vec<_>>().join(" ")
}

async fn transaction(endpoint: &str, topic: &str) -> String {
    let checked = Arc::new(Mutex::new(false));
    let noted = checked.clone();
    let mut producer = patiently!({
        let noted = noted.clone();
        let checker = Box::new(move |_: String, view: MessageView| match text(&view).as_str() {
            "rollback" => TransactionResolution::ROLLBACK,
            body => {
                *noted.lock().expect("lock") |= body == "checked";
                TransactionResolution::COMMIT
            }
        });
        Producer::new_transaction_producer(publishing(topic), client(endpoint), checker)
    });
    patiently!(producer.start().await);
    let consumer = started_consumer(endpoint, topic).await;
    let half = |body: &'static str| {
        MessageBuilder::transaction_message_builder(topic, body.as_bytes().to_vec())
            .build()
            .expect("message")
    };
    // First, because RocketMQ's check of half messages is slow while an undecided one lies behind others.
    patiently!(producer.send_transaction_message(half("checked")).await);
    let mut found: Vec<String> = receive(&consumer, topic, "*", 1).await.iter().map(text).collect();
    let rollback = patiently!(producer.send_transaction_message(half("rollback")).await);
    rollback.rollback().await.expect("rollback");
    let commit = patiently!(producer.send_transaction_message(half("commit")).await);
    commit.commit().await.expect("commit");
    found.extend(receive(&consumer, topic, "*", 1).await.iter().map(text));
    let is_checked = *checked.lock().expect("lock");
    format!("{} {is_checked}", found.join(" "))
}

async fn wrongtype(endpoint: &str, topic: &str) -> String {
    let producer = started_producer(endpoint, topic).await;
    let message = MessageBuilder::fifo_message_builder(topic, b"x".to_vec(), "a group").build();
    let outcome = producer.send(message.expect("message")).await;
    if outcome.is_err() { "refused" } else { "sent" }.to_string()
}

async fn run(endpoint: String, prefix: String, name: String) {
    let topic = format!("{prefix}_{name}");
    let scenario = name.clone();
    let running = tokio::spawn(async move {
        match scenario.as_str() {
            "simple" => simple(&endpoint, &topic).await,
            "tags" => tags(&endpoint, &topic).await,
            "fifo" => fifo(&endpoint, &topic).await,
            "delay" => delay(&endpoint, &topic).await,
            "transaction" => transaction(&endpoint, &topic).await,
            "wrongtype" => wrongtype(&endpoint, &topic).await,
            _ => panic!("unknown scenario"),
        }
    });
    let outcome = running.await.unwrap_or_else(|failure| format!("failed: {failure}"));
    println!("{}", serde_json::json!({"scenario": name, "outcome": outcome}));
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let endpoint = arguments.next().expect("an endpoint");
    let prefix = arguments.next().expect("a prefix");
    let running: Vec<_> =
        arguments.map(|name| tokio::spawn(run(endpoint.clone(), prefix.clone(), name))).collect();
    for each in running {
        each.await.expect("a scenario");
    }
    std::process::exit(0); // clients that are left end with the process
}
