// RocketMQ's Go client, for tests/interop/test_old_clients.py. Arguments: NameServer, topic, group, what to do:
//
//	first N      send N messages to a topic that need not exist, one line {"id", "queue"} each
//	consume N    a push consumer from the first offset, one line {"body", "tag", "keys", "attempt"} a message, until N came;
//	             a message "again" fails at its first attempt
//	keys         one send signed with $ACCESS_KEY and $SECRET_KEY, unsigned without; one line {"send"}: "ok" or the error
//	transact     one transaction committed, one rolled back, one that is committed when it is checked
//
// A failure is one line {"error"} and exit code 1.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

var lines sync.Mutex

func say(line map[string]any) {
	lines.Lock()
	defer lines.Unlock()
	text, _ := json.Marshal(line)
	fmt.Println(string(text))
}

func check(err error) {
	if err != nil {
		say(map[string]any{"error": err.Error()})
		os.Exit(1)
	}
}

func main() {
	rlog.SetLogLevel("error")
	namesrv, topic, group, what := []string{os.Args[1]}, os.Args[2], os.Args[3], os.Args[4]
	count := 0
	if len(os.Args) > 5 {
		count, _ = strconv.Atoi(os.Args[5])
	}
	switch what {
	case "first":
		send(namesrv, topic, group, count)
	case "consume":
		consume(namesrv, topic, group, count)
	case "keys":
		sendWithKeys(namesrv, topic, group)
	case "transact":
		transact(namesrv, topic, group)
	}
}

func send(namesrv []string, topic, group string, count int) {
	p, err := rocketmq.NewProducer(producer.WithNsResolver(primitive.NewPassthroughResolver(namesrv)),
		producer.WithGroupName(group), producer.WithRetry(2), producer.WithSendMsgTimeout(10*time.Second))
	check(err)
	check(p.Start())
	for i := 0; i < count; i++ {
		body := fmt.Sprintf("m%d", i)
		if i == count-1 {
			body = "again"
		}
		message := primitive.NewMessage(topic, []byte(body)).WithTag("go").WithKeys([]string{fmt.Sprintf("key%d", i)})
		result, err := p.SendSync(context.Background(), message)
		check(err)
		say(map[string]any{"id": result.MsgID, "queue": result.MessageQueue.QueueId, "status": int(result.Status)})
	}
	check(p.Shutdown())
}

func sendWithKeys(namesrv []string, topic, group string) {
	options := []producer.Option{producer.WithNsResolver(primitive.NewPassthroughResolver(namesrv)),
		producer.WithGroupName(group), producer.WithRetry(0), producer.WithSendMsgTimeout(20 * time.Second)}
	if os.Getenv("ACCESS_KEY") != "" {
		options = append(options, producer.WithCredentials(primitive.Credentials{
			AccessKey: os.Getenv("ACCESS_KEY"), SecretKey: os.Getenv("SECRET_KEY")}))
	}
	p, err := rocketmq.NewProducer(options...)
	check(err)
	check(p.Start())
	outcome := "ok"
	if _, err := p.SendSync(context.Background(), primitive.NewMessage(topic, []byte("go"))); err != nil {
		outcome = err.Error()
	}
	say(map[string]any{"send": outcome})
	check(p.Shutdown())
}

func consume(namesrv []string, topic, group string, count int) {
	done := make(chan struct{}, 1)
	seen := 0
	c, err := rocketmq.NewPushConsumer(consumer.WithNsResolver(primitive.NewPassthroughResolver(namesrv)),
		consumer.WithGroupName(group), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	check(err)
	var lock sync.Mutex
	check(c.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "go"},
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			lock.Lock()
			defer lock.Unlock()
			result := consumer.ConsumeSuccess
			for _, message := range messages {
				body := string(message.Body)
				say(map[string]any{"body": body, "tag": message.GetTags(), "keys": message.GetKeys(), "attempt": message.ReconsumeTimes})
				seen++
				if body == "again" && message.ReconsumeTimes == 0 {
					result = consumer.ConsumeRetryLater
				}
			}
			if seen == count {
				done <- struct{}{}
			}
			return result, nil
		}))
	check(c.Start())
	select {
	case <-done:
		time.Sleep(time.Second)
	case <-time.After(90 * time.Second):
	}
	check(c.Shutdown())
}

type listener struct{}

var checked = make(chan struct{}, 1)

func (listener) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	switch string(message.Body) {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (listener) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	say(map[string]any{"checked": string(message.Body)})
	if string(message.Body) == "checked" {
		select {
		case checked <- struct{}{}:
		default:
		}
	}
	if string(message.Body) == "rollback" {
		return primitive.RollbackMessageState
	}
	return primitive.CommitMessageState
}

func transact(namesrv []string, topic, group string) {
	p, err := rocketmq.NewTransactionProducer(listener{}, producer.WithNsResolver(primitive.NewPassthroughResolver(namesrv)),
		producer.WithGroupName(group), producer.WithSendMsgTimeout(10*time.Second))
	check(err)
	check(p.Start())
	for _, body := range []string{"commit", "rollback", "checked"} {
		_, err := p.SendMessageInTransaction(context.Background(), primitive.NewMessage(topic, []byte(body)).WithTag("go"))
		check(err)
	}
	select {
	case <-checked:
		time.Sleep(2 * time.Second)
	case <-time.After(60 * time.Second):
	}
	check(p.Shutdown())
}
