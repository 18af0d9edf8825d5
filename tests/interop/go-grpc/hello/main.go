package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

func main() {
	rmq.EnableSsl = false
	config := &rmq.Config{
		Endpoint:      os.Args[1],
		ConsumerGroup: "go-billing",
		Credentials:   &credentials.SessionCredentials{},
	}

	producer, err := rmq.NewProducer(config, rmq.WithTopics("orders"))
	check(err)
	check(producer.Start())
	_, err = producer.Send(context.Background(), &rmq.Message{Topic: "orders", Body: []byte("an order from Go")})
	check(err)
	check(producer.GracefulStop())

	consumer, err := rmq.NewSimpleConsumer(config,
		rmq.WithSimpleAwaitDuration(20*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{"orders": rmq.SUB_ALL}))
	check(err)
	check(consumer.Start())
	messages, err := consumer.Receive(context.Background(), 1, 30*time.Second)
	check(err)
	for _, message := range messages {
		fmt.Println("received", string(message.GetBody()))
		check(consumer.Ack(context.Background(), message))
	}
	check(consumer.GracefulStop())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
