import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Address;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.Recoverable;
import com.rabbitmq.client.RecoveryListener;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeoutException;

/**
 * Publishes numbers with confirms on one connection and consumes them with acks on another one, each
 * with the client's automatic recovery over the members HOST:PORT ... that are given, and says what
 * happens as lines of JSON.  A line on its input ends the publishing.
 */
public class FailingOver {
    private static final String QUEUE = "java";
    private static final int PATIENCE_MS = 10_000;
    private static volatile boolean enough = false;

    private static synchronized void say(String what, long number) {
        System.out.println("{\"" + what + "\": " + number + "}");
        System.out.flush();
    }

    private static Connection connect(String name, List<Address> members) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setAutomaticRecoveryEnabled(true);
        factory.setTopologyRecoveryEnabled(true);
        factory.setNetworkRecoveryInterval(500);
        factory.setRequestedHeartbeat(5);
        while (true) {
            try {
                Connection connection = factory.newConnection(members, name);
                ((Recoverable) connection).addRecoveryListener(new RecoveryListener() {
                    @Override
                    public void handleRecovery(Recoverable recovered) {
                        say(name + " at", connection.getPort());
                    }

                    @Override
                    public void handleRecoveryStarted(Recoverable recovering) {}
                });
                say(name + " at", connection.getPort());
                return connection;
            } catch (IOException | TimeoutException refused) {
                Thread.sleep(200);
            }
        }
    }

    private static void consume(Connection connection) throws IOException {
        Channel channel = connection.createChannel();
        channel.queueDeclare(QUEUE, true, false, false, null);
        channel.basicQos(10);
        channel.basicConsume(QUEUE, false, new DefaultConsumer(channel) {
            @Override
            public void handleDelivery(
                    String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body)
                    throws IOException {
                say("arrived", Long.parseLong(new String(body, StandardCharsets.UTF_8)));
                try {
                    channel.basicAck(envelope.getDeliveryTag(), false);
                } catch (ShutdownSignalException lost) {
                    // it comes again
                }
            }
        });
    }

    /** Returns the number to go on with when a member gave no answer: then it hangs up. */
    private static long publish(Connection connection, long first) throws Exception {
        Channel channel = connection.createChannel();
        channel.queueDeclare(QUEUE, true, false, false, null);
        channel.confirmSelect();
        long next = first;
        while (!enough) {
            byte[] body = Long.toString(next).getBytes(StandardCharsets.UTF_8);
            try {
                channel.basicPublish("", QUEUE, MessageProperties.PERSISTENT_BASIC, body);
                if (channel.waitForConfirms(PATIENCE_MS)) {
                    say("confirmed", next++);
                }
                Thread.sleep(10);
            } catch (ShutdownSignalException | IOException lost) {
                Thread.sleep(100); // the channel recovers by itself; then the same number again
            } catch (TimeoutException silent) {
                connection.abort(1_000);
                return next;
            }
        }
        return next;
    }

    public static void main(String[] arguments) throws Exception {
        List<Address> members = new ArrayList<>();
        for (String one : arguments) {
            members.add(Address.parseAddress(one));
        }
        Thread input = new Thread(() -> {
            try {
                enough = System.in.read() >= 0;
            } catch (IOException gone) {
                enough = true;
            }
        });
        input.setDaemon(true);
        input.start();
        consume(connect("consumer", members));
        long next = 0;
        while (!enough) {
            next = publish(connect("publisher", members), next);
        }
        Thread.currentThread().join(); // what is left is still consumed
    }
}
