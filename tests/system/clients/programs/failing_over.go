// Publishes numbers with confirms on one connection and consumes them with acks on another one, and
// says what happens as lines of JSON.  Arguments: the members, HOST:PORT.  A line on its input ends
// the publishing.  The library has no recovery: what fails is connected anew, at the next member.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	queue    = "go"
	patience = 10 * time.Second
)

var (
	printing sync.Mutex
	enough   atomic.Bool
)

func say(what string, number int) {
	printing.Lock()
	defer printing.Unlock()
	fmt.Printf("{\"%s\": %d}\n", what, number)
}

// work connects to one member after the other, and does this with a channel until it fails.
func work(name string, members []string, ended func() bool, do func(*amqp.Channel) error) {
	for turn := 0; !ended(); turn++ {
		if err := at(name, members[turn%len(members)], do); err != nil {
			fmt.Fprintln(os.Stderr, name, err)
			time.Sleep(200 * time.Millisecond)
		}
	}
}

func at(name, member string, do func(*amqp.Channel) error) error {
	var wire net.Conn
	connection, err := amqp.DialConfig("amqp://guest:guest@"+member+"/", amqp.Config{
		Heartbeat: 5 * time.Second,
		Dial: func(network, address string) (net.Conn, error) {
			made, err := amqp.DefaultDial(5*time.Second)(network, address)
			wire = made
			return made, err
		},
	})
	if err != nil {
		return err
	}
	defer wire.Close() // a member that gives no answer gives none to Close of the connection
	answered := time.AfterFunc(patience, func() { wire.Close() })
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	if _, err = channel.QueueDeclare(queue, true, false, false, false, nil); err != nil {
		return err
	}
	answered.Stop()
	_, port, _ := strings.Cut(member, ":")
	number, _ := strconv.Atoi(port)
	say(name+" at", number)
	return do(channel)
}

func main() {
	members := os.Args[1:]
	go func() {
		bufio.NewReader(os.Stdin).ReadString('\n')
		enough.Store(true)
	}()
	last := append([]string{members[len(members)-1]}, members...)
	go work("consumer", last, func() bool { return false }, func(channel *amqp.Channel) error {
		if err := channel.Qos(10, 0, false); err != nil {
			return err
		}
		deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
		if err != nil {
			return err
		}
		for one := range deliveries {
			number, _ := strconv.Atoi(string(one.Body))
			say("arrived", number)
			if err := one.Ack(false); err != nil {
				return err
			}
		}
		return errors.New("its channel was closed")
	})
	next := 0
	work("publisher", members, enough.Load, func(channel *amqp.Channel) error {
		if err := channel.Confirm(false); err != nil {
			return err
		}
		confirms := channel.NotifyPublish(make(chan amqp.Confirmation, 1))
		for !enough.Load() {
			err := channel.PublishWithContext(context.Background(), "", queue, false, false, amqp.Publishing{
				DeliveryMode: amqp.Persistent, Body: []byte(strconv.Itoa(next)),
			})
			if err != nil {
				return err
			}
			select {
			case confirm, open := <-confirms:
				if !open || !confirm.Ack {
					return errors.New("no confirm")
				}
			case <-time.After(patience):
				return errors.New("no answer")
			}
			say("confirmed", next)
			next++
			time.Sleep(10 * time.Millisecond)
		}
		return nil
	})
	select {} // what is left is still consumed
}
