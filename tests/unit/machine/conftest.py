"""Fixtures of the machine's tests."""

import pytest

from tests.support.three_machines import Rig


@pytest.fixture
def rig() -> Rig:
    """Three machines that apply the same commands."""
    return Rig()
