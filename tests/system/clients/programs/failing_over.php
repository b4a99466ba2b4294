<?php
// Publishes numbers with confirms on one connection and consumes them with acks on another one, and
// says what happens as lines of JSON.  Arguments: the members, HOST:PORT.  A line on its input ends
// the publishing.  php-amqplib has no recovery: what fails is connected anew, at the next member.
require '/usr/share/php/PhpAmqpLib/autoload.php';

use PhpAmqpLib\Channel\AMQPChannel;
use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Exception\AMQPExceptionInterface;
use PhpAmqpLib\Exception\AMQPTimeoutException;
use PhpAmqpLib\Message\AMQPMessage;

const QUEUE = 'php';
const PATIENCE_S = 10;

function say(string $what, int $number): void
{
    fwrite(STDOUT, json_encode([$what => $number]) . "\n");
}

/** One of the two, connected when it is needed. */
final class Client
{
    public ?AMQPChannel $channel = null;

    public function __construct(private string $name, private array $members, private Closure $begin)
    {
    }

    /** Do something on the channel; where that fails, it is another one the next time. */
    public function work(Closure $what): void
    {
        try {
            if ($this->channel === null) {
                $this->connect();
            }
            $what($this->channel);
        } catch (AMQPExceptionInterface | ErrorException $lost) {
            fwrite(STDERR, "{$this->name}: " . get_class($lost) . " {$lost->getMessage()}\n");
            $this->hangUp();
            usleep(200000);
        }
    }

    private function connect(): void
    {
        $this->members[] = $member = array_shift($this->members);
        [$host, $port] = explode(':', $member);
        $connection = new AMQPStreamConnection(
            $host, $port, 'guest', 'guest', '/', false, 'PLAIN', null, 'en_US', 5.0, PATIENCE_S,
            null, false, 0, PATIENCE_S
        );
        $this->channel = $connection->channel();
        $this->channel->queue_declare(QUEUE, false, true, false, false);
        ($this->begin)($this->channel);
        say("{$this->name} at", (int) $port);
    }

    private function hangUp(): void
    {
        // Without a close that waits for its answer.
        $this->channel?->getConnection()?->getIO()?->close();
        $this->channel = null;
    }
}

set_error_handler(function (int $level, string $text) {
    throw new ErrorException($text, 0, $level);
}, E_WARNING);
stream_set_blocking(STDIN, false);
$members = array_slice($argv, 1);
$next = 0;
$consumer = new Client('consumer', array_reverse($members), function (AMQPChannel $channel) {
    $channel->basic_qos(0, 10, false);
    $channel->basic_consume(QUEUE, '', false, false, false, false, function (AMQPMessage $message) {
        say('arrived', (int) $message->getBody());
        $message->ack();
    });
});
$publisher = new Client('publisher', $members, function (AMQPChannel $channel) use (&$next) {
    $channel->confirm_select();
    $channel->set_ack_handler(function (AMQPMessage $message) use (&$next) {
        if ((int) $message->getBody() === $next) {
            say('confirmed', $next++);
        }
    });
});
$enough = false;
while (true) {
    $enough = $enough || fgets(STDIN) !== false;
    if (!$enough) {
        $publisher->work(function (AMQPChannel $channel) use (&$next) {
            $persistent = ['delivery_mode' => AMQPMessage::DELIVERY_MODE_PERSISTENT];
            $channel->basic_publish(new AMQPMessage((string) $next, $persistent), '', QUEUE);
            $channel->wait_for_pending_acks(PATIENCE_S);
        });
    }
    $consumer->work(function (AMQPChannel $channel) {
        try {
            for ($taken = 0; $taken < 10; $taken++) {
                $channel->wait(null, false, 0.01);
            }
        } catch (AMQPTimeoutException) {
            // nothing is there
        }
    });
}
