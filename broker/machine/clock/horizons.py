"""The *horizon*: the time from which the age of newly created things counts.

A tick names how far its sender's clock has advanced, and the position up to which the sender had
applied then. Anything created behind that position counts from a horizon that the sender did not
know, so the claim is cut to the first such horizon. And a member sets its clock back to the horizon
of what it applies (broker/timers/ticker.py). So no clock ever has to be held at a limit; a horizon
that is too near costs time, but lets nothing expire early.

A horizon never goes back. Ticks move it: to the time they claim, and to the time that the sender
expects its clock to show when its next submission is applied.

Decision: docs/decisions/0061-a-tick-names-the-position-it-was-read-at.md.
"""

from bisect import bisect_right

from broker.machine.digest import item_hash
from broker.machine.schedule import NEVER_US
from broker.machine.state import Span, State

SPANS_MAX = 64
"""The number of former horizons kept; a tick older than all of them claims little."""


def horizon_element(state: State) -> int:
    """The digest element of the current horizon."""
    return item_hash("horizon", state.horizon_us, state.last_other, state.last_tick)


def span_element(span: Span) -> int:
    return item_hash("span", *span)


def first_horizon(state: State, applied: int, until: int) -> int:
    """The horizon of the first position behind `applied`, up to `until`, at which something other
    than a tick was ordered; NEVER_US if there is none."""
    spans = state.spans
    at = bisect_right(spans, applied, key=_last)
    if at < len(spans):
        return spans[at].horizon_us
    last = state.last_other if until == state.last_tick else until
    return state.horizon_us if last > applied else NEVER_US


def _last(span: Span) -> int:
    return span.last


def advance(state: State, horizon_us: int, *, is_quiet: bool) -> None:
    """A tick moves the horizon. `is_quiet`: nothing is created at its position."""
    state.remove(horizon_element(state))
    if state.last_tick != state.position - 1:
        state.last_other = state.position - 1
    if horizon_us > state.horizon_us:
        _close_span(state)
        state.horizon_us = horizon_us
    if is_quiet:
        state.last_tick = state.position
    state.add(horizon_element(state))


def _close_span(state: State) -> None:
    spans = state.spans
    if spans and spans[-1].last >= state.last_other:
        return  # only ticks were ordered under this horizon
    spans.append(Span(state.last_other, state.horizon_us))
    state.add(span_element(spans[-1]))
    if len(spans) > SPANS_MAX:
        first, second = spans[:2]
        spans[:2] = [Span(second.last, first.horizon_us)]
        state.remove(span_element(first) + span_element(second))
        state.add(span_element(spans[0]))
