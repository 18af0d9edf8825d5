// Every kind of message of RocketMQ's gRPC protocol, sent and received by its official Go client.
//
// Arguments: endpoint, prefix of topics and groups, names of scenarios. The topic of a scenario is <prefix>_<name>, its group
// G<prefix>_<name>. Prints one line {"scenario": name, "outcome": text} for each; node-grpc and rust-grpc print the same.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const patience = 120 * time.Second
const invisible = 30 * time.Second

var endpoint string

func config(topic string) *rmq.Config {
	return &rmq.Config{Endpoint: endpoint, ConsumerGroup: "G" + topic, Credentials: &credentials.SessionCredentials{}}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// patiently makes a call until it works: RocketMQ's proxy gives up soon where the machine is busy.
func patiently(call func() error) {
	var err error
	for attempt := 0; attempt < 20; attempt++ {
		if err = call(); err == nil {
			return
		}
		time.Sleep(time.Second)
	}
	panic(err)
}

func producing(topic string, options ...rmq.ProducerOption) rmq.Producer {
	var producer rmq.Producer
	patiently(func() error {
		made, err := rmq.NewProducer(config(topic), append(options, rmq.WithTopics(topic))...)
		if err != nil {
			return err
		}
		producer = made
		return made.Start()
	})
	return producer
}

func message(topic string, body string) *rmq.Message {
	return &rmq.Message{Topic: topic, Body: []byte(body)}
}

func send(producer rmq.Producer, sent *rmq.Message) *rmq.SendReceipt {
	var receipt *rmq.SendReceipt
	patiently(func() error {
		receipts, err := producer.Send(context.Background(), sent)
		if err == nil {
			receipt = receipts[0]
		}
		return err
	})
	return receipt
}

func consuming(topic string, expression *rmq.FilterExpression) rmq.SimpleConsumer {
	var consumer rmq.SimpleConsumer
	patiently(func() error {
		made, err := rmq.NewSimpleConsumer(config(topic),
			rmq.WithSimpleAwaitDuration(3*time.Second),
			rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: expression}))
		if err != nil {
			return err
		}
		consumer = made
		return made.Start()
	})
	return consumer
}

// receive returns what `describe` tells of `count` messages, each once, acknowledged.
func receive(consumer rmq.SimpleConsumer, count int, batch int32, describe func(*rmq.MessageView) string) []string {
	var found []string
	for end := time.Now().Add(patience); len(found) < count && time.Now().Before(end); {
		views, err := consumer.Receive(context.Background(), batch, invisible)
		if err != nil {
			time.Sleep(100 * time.Millisecond) // nothing has come, too
			continue
		}
		for _, view := range views {
			told := describe(view)
			if !contains(found, told) {
				found = append(found, told)
			}
			must(consumer.Ack(context.Background(), view))
		}
	}
	return found
}

func contains(items []string, wanted string) bool {
	for _, item := range items {
		if item == wanted {
			return true
		}
	}
	return false
}

func text(view *rmq.MessageView) string { return string(view.GetBody()) }

func joined(items []string) string { return strings.Join(items, " ") }

func sorted(items []string) string {
	sort.Strings(items)
	return joined(items)
}

// seen is what a push consumer was given, by message group or lite topic.
type seen struct {
	lock   sync.Mutex
	groups map[string][]string
	count  int
}

func (s *seen) take(view *rmq.MessageView) rmq.ConsumerResult {
	s.lock.Lock()
	defer s.lock.Unlock()
	name := view.GetLiteTopic()
	if group := view.GetMessageGroup(); group != nil && *group != "" {
		name = *group
	}
	if !contains(s.groups[name], text(view)) {
		s.groups[name] = append(s.groups[name], text(view))
		s.count++
	}
	return rmq.SUCCESS
}

// told waits for `count` messages and tells each group with its messages in the order in which they came.
func (s *seen) told(count int, inOrder bool) string {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		s.lock.Lock()
		isWhole := s.count >= count
		s.lock.Unlock()
		if isWhole {
			break
		}
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	var lines []string
	for name, bodies := range s.groups {
		if !inOrder {
			sort.Strings(bodies)
		}
		lines = append(lines, strings.TrimSpace(name+" "+joined(bodies)))
	}
	sort.Strings(lines)
	return strings.Join(lines, "; ")
}

func pushing(topic string, s *seen) rmq.PushConsumer {
	s.groups = map[string][]string{}
	var consumer rmq.PushConsumer
	patiently(func() error {
		made, err := rmq.NewPushConsumer(config(topic),
			rmq.WithPushAwaitDuration(3*time.Second),
			rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}),
			rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: s.take}),
			rmq.WithPushConsumptionThreadCount(4), rmq.WithPushMaxCacheMessageCount(64))
		if err != nil {
			return err
		}
		consumer = made
		return made.Start()
	})
	return consumer
}

func simple(topic string) string {
	producer, consumer := producing(topic), consuming(topic, rmq.SUB_ALL)
	defer producer.GracefulStop()
	defer consumer.GracefulStop()
	for number := 0; number < 4; number++ {
		sent := message(topic, fmt.Sprintf("m%d", number))
		sent.SetTag(fmt.Sprintf("tag%d", number))
		sent.SetKeys(fmt.Sprintf("key%d", number), "second")
		sent.AddProperty("p", fmt.Sprintf("v%d", number))
		send(producer, sent)
	}
	return sorted(receive(consumer, 4, 16, func(view *rmq.MessageView) string {
		return fmt.Sprintf("%s|%s|%s|%s|%d", text(view), *view.GetTag(), strings.Join(view.GetKeys(), ","),
			view.GetProperties()["p"], view.GetDeliveryAttempt())
	}))
}

func tags(topic string) string {
	producer, consumer := producing(topic), consuming(topic, rmq.NewFilterExpression("a || c"))
	defer producer.GracefulStop()
	defer consumer.GracefulStop()
	for number := 0; number < 8; number++ {
		sent := message(topic, fmt.Sprintf("m%d", number))
		sent.SetTag(string("abcd"[number%4]))
		send(producer, sent)
	}
	return sorted(receive(consumer, 4, 16, text))
}

func push(topic string) string {
	var s seen
	producer, consumer := producing(topic), pushing(topic, &s)
	defer producer.GracefulStop()
	defer consumer.GracefulStop()
	for number := 0; number < 8; number++ {
		send(producer, message(topic, fmt.Sprintf("m%d", number)))
	}
	return s.told(8, false)
}

func fifo(topic string) string {
	var s seen
	producer, consumer := producing(topic), pushing(topic, &s)
	defer producer.GracefulStop()
	defer consumer.GracefulStop()
	for number := 0; number < 9; number++ {
		sent := message(topic, fmt.Sprintf("m%d", number))
		sent.SetMessageGroup(fmt.Sprintf("group%d", number%3))
		send(producer, sent)
	}
	return s.told(9, true)
}

func delay(topic string) string {
	producer, consumer := producing(topic), consuming(topic, rmq.SUB_ALL)
	defer producer.GracefulStop()
	defer consumer.GracefulStop()
	due := time.Now().Add(4 * time.Second)
	sent := message(topic, "later")
	sent.SetDelayTimestamp(due)
	send(producer, sent)
	return joined(receive(consumer, 1, 16, func(view *rmq.MessageView) string {
		return fmt.Sprintf("%s %t", text(view), time.Now().After(due.Add(-1500*time.Millisecond)))
	}))
}

func recall(topic string) string {
	producer, consumer := producing(topic), consuming(topic, rmq.SUB_ALL)
	defer producer.GracefulStop()
	defer consumer.GracefulStop()
	now := time.Now()
	never, after := message(topic, "never"), message(topic, "after")
	never.SetDelayTimestamp(now.Add(12 * time.Second))
	after.SetDelayTimestamp(now.Add(15 * time.Second))
	receipt := send(producer, never)
	send(producer, after)
	var recalled string
	patiently(func() error {
		found, err := producer.Recall(context.Background(), topic, receipt.RecallHandle)
		recalled = found
		return err
	})
	return fmt.Sprintf("%t %s", recalled == receipt.MessageID, joined(receive(consumer, 1, 16, text)))
}

func transaction(topic string) string {
	var checked sync.Map
	checker := &rmq.TransactionChecker{Check: func(view *rmq.MessageView) rmq.TransactionResolution {
		checked.Store(text(view), true)
		if text(view) == "rollback" {
			return rmq.ROLLBACK
		}
		return rmq.COMMIT
	}}
	producer, consumer := producing(topic, rmq.WithTransactionChecker(checker)), consuming(topic, rmq.SUB_ALL)
	defer producer.GracefulStop()
	defer consumer.GracefulStop()
	half := func(body string) rmq.Transaction {
		var begun rmq.Transaction
		patiently(func() error {
			begun = producer.BeginTransaction()
			_, err := producer.SendWithTransaction(context.Background(), message(topic, body), begun)
			return err
		})
		return begun
	}
	half("checked") // first, because RocketMQ's check of half messages is slow while an undecided one lies behind others
	found := receive(consumer, 1, 16, text)
	rollback := half("rollback")
	patiently(rollback.RollBack)
	commit := half("commit")
	patiently(commit.Commit)
	found = append(found, receive(consumer, 1, 16, text)...)
	_, isChecked := checked.Load("checked")
	return fmt.Sprintf("%s %t", joined(found), isChecked)
}

func priority(topic string) string {
	producer := producing(topic)
	defer producer.GracefulStop()
	for _, number := range []int32{2, 1, 3} {
		sent := message(topic, fmt.Sprintf("p%d", number))
		must(sent.SetPriority(number))
		send(producer, sent)
	}
	consumer := consuming(topic, rmq.SUB_ALL)
	defer consumer.GracefulStop()
	return joined(receive(consumer, 3, 1, text))
}

func again(topic string) string {
	producer, consumer := producing(topic), consuming(topic, rmq.SUB_ALL)
	defer producer.GracefulStop()
	defer consumer.GracefulStop()
	send(producer, message(topic, "again"))
	var found []string
	for end := time.Now().Add(patience); len(found) < 2 && time.Now().Before(end); {
		views, err := consumer.Receive(context.Background(), 4, invisible)
		if err != nil {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		for _, view := range views {
			told := fmt.Sprintf("%s|%d", text(view), view.GetDeliveryAttempt())
			if contains(found, told) {
				continue
			}
			found = append(found, told)
			if len(found) == 1 {
				must(consumer.ChangeInvisibleDuration(view, 10*time.Second))
			} else {
				must(consumer.Ack(context.Background(), view))
			}
		}
	}
	return joined(found)
}

func lite(topic string) string {
	s := seen{groups: map[string][]string{}}
	producer := producing(topic)
	defer producer.GracefulStop()
	var consumer rmq.LitePushConsumer
	patiently(func() error {
		made, err := rmq.NewLitePushConsumer(config(topic), rmq.NewLitePushConsumerConfig(topic, invisible),
			rmq.WithPushAwaitDuration(3*time.Second),
			rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: s.take}),
			rmq.WithPushConsumptionThreadCount(4), rmq.WithPushMaxCacheMessageCount(64))
		if err != nil {
			return err
		}
		consumer = made
		return made.Start()
	})
	defer consumer.GracefulStop()
	for _, name := range []string{"a", "b"} {
		patiently(func() error { return consumer.SubscribeLite(name) })
	}
	time.Sleep(2 * time.Second) // RocketMQ loses what comes before a group's first receive of a lite topic
	for number := 0; number < 6; number++ {
		sent := message(topic, fmt.Sprintf("m%d", number))
		sent.SetLiteTopic(string("abc"[number%3]))
		send(producer, sent)
	}
	return s.told(4, true)
}

func wrongtype(topic string) string {
	producer := producing(topic)
	defer producer.GracefulStop()
	sent := message(topic, "x")
	sent.SetMessageGroup("a group in a topic of normal messages")
	if _, err := producer.Send(context.Background(), sent); err != nil {
		return "refused"
	}
	return "sent"
}

func main() {
	rmq.EnableSsl = false
	endpoint = os.Args[1]
	all := map[string]func(string) string{
		"simple": simple, "tags": tags, "push": push, "fifo": fifo, "delay": delay, "recall": recall,
		"transaction": transaction, "priority": priority, "again": again, "lite": lite, "wrongtype": wrongtype,
	}
	var lines sync.Mutex
	var running sync.WaitGroup
	for _, name := range os.Args[3:] {
		running.Add(1)
		go func() {
			defer running.Done()
			outcome := ""
			func() {
				defer func() {
					if failure := recover(); failure != nil {
						outcome = fmt.Sprintf("failed: %v", failure)
					}
				}()
				outcome = all[name](os.Args[2] + "_" + name)
			}()
			line, _ := json.Marshal(map[string]string{"scenario": name, "outcome": outcome})
			lines.Lock()
			defer lines.Unlock()
			fmt.Println(string(line))
		}()
	}
	running.Wait()
}
