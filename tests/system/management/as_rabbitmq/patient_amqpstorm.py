"""A plugin of pytest for the tests that AMQPStorm brings: another port, and no limits of a second.

They know no port but 5672, and expect most answers within one second.
"""

from __future__ import annotations

import os

from amqpstorm import Connection
from amqpstorm.management import ManagementApi
from amqpstorm.tests.functional import utility

PORT = int(os.environ["AMQP_PORT"])
PATIENCE_SECONDS = 60

connect = Connection.__init__


def patiently(self: Connection, *args: object, **options: object) -> None:
    """Connect where our member listens."""
    connect(self, *args, **{"port": PORT, **options, "timeout": PATIENCE_SECONDS})


def patient_api(*args: object, **options: object) -> ManagementApi:
    """The client of the management API that the tests' preparations use."""
    return ManagementApi(*args, **{**options, "timeout": PATIENCE_SECONDS})


Connection.__init__ = patiently
utility.ManagementApi = patient_api
