# Publishes numbers with confirms on one connection and consumes them with acks on another one, and
# says what happens as lines of JSON.  Arguments: the members, HOST:PORT.  A line on its input ends the
# publishing.
#
# The consumer recovers by itself.  The publisher connects anew, as bunny's manual has it for who must
# know what was confirmed: a recovered channel forgets what was not, and wait_for_confirms ends as if
# it had been.
require "bunny"
require "logger"
require "timeout"

QUEUE = "bunny"
PATIENCE_S = 10
MEMBERS = ARGV.map(&:dup)
PRINTING = Mutex.new

def say(what, number)
  PRINTING.synchronize { $stdout.puts(%({"#{what}": #{number}})); $stdout.flush }
end

def options(more)
  { addresses: MEMBERS.rotate!, heartbeat: 5, connection_timeout: 5, network_recovery_interval: 0.2,
    continuation_timeout: PATIENCE_S * 1000, logger: Logger.new($stderr, level: :warn) }.merge(more)
end

def consume
  connection = Bunny.new(options({}))
  connection.after_recovery_completed { say("consumer at", connection.port) }
  connection.start
  say("consumer at", connection.port)
  channel = connection.create_channel
  channel.prefetch(10)
  channel.queue(QUEUE, durable: true).subscribe(manual_ack: true) do |delivery, _, body|
    say("arrived", Integer(body))
    begin
      channel.ack(delivery.delivery_tag)
    rescue Bunny::Exception
      nil # it comes again
    end
  end
rescue Bunny::Exception, SystemCallError, Timeout::Error
  sleep 0.2
  retry
end

# What bunny would raise into whatever its thread does comes among the confirms.
Lost = Struct.new(:confirms) do
  def raise(*_) = confirms << :lost
end

def publish_on(connection, confirms, first)
  number = first
  channel = connection.create_channel
  channel.confirm_select(->(tag, _multiple, refused) { confirms << (refused ? :refused : tag) })
  exchange = channel.default_exchange
  channel.queue(QUEUE, durable: true)
  until $enough
    tag = channel.next_publish_seq_no
    exchange.publish(number.to_s, routing_key: QUEUE, persistent: true)
    break unless Timeout.timeout(PATIENCE_S) { confirms.pop } == tag
    say("confirmed", number)
    number += 1
    sleep 0.01
  end
  number
rescue Bunny::Exception, SystemCallError, Timeout::Error
  number # its fate is not known: the same again
end

def publish
  number = 0
  until $enough
    confirms = Queue.new
    begin
      connection = Bunny.new(options(automatically_recover: false, session_error_handler: Lost.new(confirms)))
      connection.start
      say("publisher at", connection.port)
      number = publish_on(connection, confirms, number)
    rescue Bunny::Exception, SystemCallError, Timeout::Error
      sleep 0.2
    ensure
      connection&.transport&.close
    end
  end
end

$enough = false
Thread.new { $stdin.gets; $enough = true }
consume
publish
sleep # what is left is still consumed
