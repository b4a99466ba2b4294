"""Known hosts, as they fit."""

from broker.management.failover import KNOWN_HOSTS_BYTES_MAX, known_hosts


def test_known_hosts_are_those_of_a_scheme_by_host_and_port() -> None:
    urls = ["amqp:tcp:a:5672,ssl:a:5671", "amqp:ssl:b:5671", "amqp:tcp:[::1]:5672"]
    assert known_hosts(urls, "tcp") == "a:5672,[::1]:5672"
    assert known_hosts(urls, "ssl") == "a:5671,b:5671"
    assert known_hosts([], "tcp") == ""


def test_there_are_as_many_whole_ones_as_there_is_room_for() -> None:
    urls = [f"amqp:tcp:{number:0100}.example:5672" for number in range(4)]
    found = known_hosts(urls, "tcp")
    assert found == ",".join(url.removeprefix("amqp:tcp:") for url in urls[:2])
    assert len(found) <= KNOWN_HOSTS_BYTES_MAX
