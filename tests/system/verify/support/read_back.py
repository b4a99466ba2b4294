"""Records as the check reads them, from records that were never in a file."""

from __future__ import annotations

from collections.abc import Iterable

from broker.memberlog import codec
from broker.memberlog.records import Record as Written
from tools.verify.format.records import Record, decode


def read_back(records: Iterable[Written]) -> list[Record]:
    """Return the check's decoding of the bytes that a member would write."""
    return [decode(codec.encode(0, record), expanded=False)[1] for record in records]
