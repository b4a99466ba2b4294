"""Texts that are no number, and no name of a host."""

from __future__ import annotations

import pytest

from broker.options.broker import broker_options
from broker.options.values import OptionError


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("port", "1" * 5000), ("memory-limit", "1" * 400), ("max-message-size", "1" * 400),
        ("management-interface", "a b"), ("memory-limit", "1.0"), ("memory-limit", "100%"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_number_or_no_name_is_refused_as_such(option: str, text: str) -> None:
    with pytest.raises(OptionError) as refused:
        broker_options({option: text})
    assert refused.value.option == option
