"""Client connections: sockets, channels, AMQP methods in, replies and deliveries out.

Ownership, from a client's bytes through the ordered command to its reply:

| object | owns |
| --- | --- |
| `ClientLink` | a socket, and the output that it has not taken yet |
| `Client` | the AMQP connection, its channels, and what waits before it is looked at (`kept`) |
| `LocalChannel` | numbers of publishes, a transaction, replies held back, confirms that are due |
| `ClientLogins` | who a client is; logins that are slowed, or asked of a server |
| `Admission` | whether clients are let in now, and those who wait for that |
| `Gateway` | all clients by number, the commands of this turn, who has output, the fence, alarms |
| `Outbox` | effects that wait for the fence or for their position, and the channels they are for |

`dispatch`, `methods` and `needs` own nothing: they turn a client's events into commands. A command
is forgotten here once it is ordered; its effects name connection and channel.
"""
