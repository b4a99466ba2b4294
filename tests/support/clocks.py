"""What tests of the machine's time have in common."""

from tests.support.three_machines import Client, Rig

SECOND = 1_000_000
YEAR = 365 * 24 * 3600 * SECOND
EXPIRES_IN_A_SECOND = b"\x01\x00\x041000"


def mortal(rig: Rig, member: str = "a") -> Client:
    """A client that has published one message with a second to live."""
    client = rig.client(member)
    client.queue("q")
    client.publish("q", b"m", properties=EXPIRES_IN_A_SECOND)
    return client


def long_lived(rig: Rig) -> None:
    """A message with an hour to live, so that time is wanted."""
    client = rig.client()
    client.queue("long", {"x-message-ttl": 3_600_000})
    client.publish("long", b"m")


def all_speak(rig: Rig) -> None:
    """Every member has sent a blob: its clock is waited for."""
    for name, record in rig.machine.sessions.items():
        for machine in rig.machines.values():
            assert machine.accept_blob(name, record.session, 1)


def new_message(rig: Rig, member: str) -> None:
    """One with a second to live, in a queue of its own."""
    client = rig.client(member)
    client.queue("new")
    client.publish("new", b"m", properties=EXPIRES_IN_A_SECOND)


def read_all(rig: Rig, **dates: int) -> None:
    for name, date in dates.items():
        rig.read(name, date)
