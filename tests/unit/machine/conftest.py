"""Fixtures of the machine's tests."""

from collections.abc import Iterator

import pytest

from tests.support.three_machines import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Three machines that apply the same commands; their invariants are checked at the end."""
    rig = Rig()
    yield rig
    for machine in rig.machines.values():
        machine.invariants()
