"""The settings of policies: their keys, valid values, and RabbitMQ's words for what is wrong.

Only checks that come out alike at all members are made here; the origin has decided whether a
pattern is a regular expression. An unknown key is refused, so that no operator believes in a limit
that does not exist. Keys of mirrored queues (`ha-*`) are checked as in RabbitMQ and have no effect,
because every queue is on every member anyway
(docs/decisions/0034-every-queue-is-on-every-member.md).
"""

from collections.abc import Callable

from broker.machine.commands import Table, Value

APPLY_TO = ("all", "exchanges", "queues", "classic_queues", "quorum_queues", "streams")
PRIORITY_MAX = 1 << 31
NAME_BYTES_MAX = 255
NUMBER_MAX = 1 << 53
_NUMBERS = {
    "message-ttl": (0, "message TTL"),
    "expires": (1, "queue expiry"),
    "max-length": (0, "maximum length"),
    "max-length-bytes": (0, "maximum length in bytes"),
    "delivery-limit": (0, "delivery limit"),
}
_CONSUMER_TIMEOUT = {"consumer-timeout": (1, "consumer timeout")}
MAX_AGE = "max-age"
SEGMENT_BYTES_MAX = 3_000_000_000
_WITHOUT_EFFECT = {
    "stream-max-segment-size-bytes": (1, SEGMENT_BYTES_MAX, "segment size"),
    "stream-filter-size-bytes": (16, 255, "filter size"),
    "max-in-memory-length": (0, NUMBER_MAX, "maximum memory in length"),
    "max-in-memory-bytes": (0, NUMBER_MAX, "maximum memory in bytes"),
    "target-group-size": (1, NUMBER_MAX, "qq target count value"),
}
"""How RabbitMQ stores streams and quorum queues, which are stored differently here."""
_UNITS_S = {
    "Y": 365 * 86_400, "M": 30 * 86_400, "D": 86_400, "h": 3_600, "m": 60, "s": 1,
}  # fmt: skip
_AGE_DIGITS_MAX = 9
_NAMES = {
    "dead-letter-exchange": "dead letter exchange name",
    "dead-letter-routing-key": "dead letter routing key",
    "alternate-exchange": "alternate exchange name",
}
_CHOICES: dict[str, tuple[tuple[Value, ...], str]] = {
    "overflow": (("drop-head", "reject-publish", "reject-publish-dlx"), "overflow value"),
    "dead-letter-strategy": (("at-most-once", "at-least-once"), "dead letter strategy"),
    "queue-mode": (("default", "lazy"), "queue-mode value"),
    "queue-version": ((1, 2), "queue-version value"),
    "queue-leader-locator": (
        ("client-local", "balanced", "random", "least-leaders"),
        "queue leader locator value",
    ),
    "queue-master-locator": (
        ("client-local", "min-masters", "random"),
        "queue master locator value",
    ),
}
_HA = (
    "ha-mode",
    "ha-params",
    "ha-sync-mode",
    "ha-sync-batch-size",
    "ha-promote-on-shutdown",
    "ha-promote-on-failure",
)
_UPSTREAM, _UPSTREAM_SET = FEDERATION_KEYS = ("federation-upstream", "federation-upstream-set")
"""The members look up which upstreams are linked."""
KEYS = (
    *_NUMBERS, *_CONSUMER_TIMEOUT, MAX_AGE, *_WITHOUT_EFFECT, *_NAMES, *_CHOICES, *_HA,
    *FEDERATION_KEYS,
)  # fmt: skip
OPERATOR_KEYS = (*_NUMBERS, *_WITHOUT_EFFECT, "ha-mode", "ha-params", "ha-sync-mode")
"""An operator policy only limits; a queue's own policy sets the rest."""


def policy_fault(body: Table) -> str:
    return _fault(body, KEYS)


def operator_policy_fault(body: Table) -> str:
    return _fault(body, OPERATOR_KEYS)


def age_us(text: Value) -> int:
    """An age of messages such as `7D`, in microseconds; -1 if it is not one."""
    if not isinstance(text, str):
        return -1
    number, unit = text[:-1], _UNITS_S.get(text[-1:])
    if unit is None or not (number.isascii() and number.isdigit() and int(number[:20])):
        return -1
    return int(number) * unit * 1_000_000 if len(number) <= _AGE_DIGITS_MAX else -1


def _fault(body: Table, keys: tuple[str, ...]) -> str:
    """What is wrong with the body of a policy, in one sentence."""
    for key in ("pattern", "definition"):
        if key not in body:
            return f'Key "{key}" not found'
    unknown = [key for key in body if key not in ("pattern", "definition", "priority", "apply-to")]
    if unknown:
        return f"Unrecognised terms {erlang(tuple(unknown))}"
    pattern, definition = body["pattern"], body["definition"]
    priority, apply_to = body.get("priority", 0), body.get("apply-to", "all")
    if type(priority) is not int or abs(priority) > PRIORITY_MAX:
        return f"priority should be a number, actually was {erlang(priority)}"
    if type(pattern) is not str:
        return f"pattern should be binary, actually was {erlang(pattern)}"
    if apply_to not in APPLY_TO:
        shown = apply_to if isinstance(apply_to, str) else erlang(apply_to)
        choices = ", ".join(f"'{one}'" for one in APPLY_TO[:-1])
        return f"apply-to '{shown}' unrecognised; should be one of: {choices} or '{APPLY_TO[-1]}'"
    if not isinstance(definition, dict):
        return f"definition must be a dictionary: {erlang(definition)}"
    return _definition_fault(definition, keys)


def _definition_fault(definition: Table, keys: tuple[str, ...]) -> str:
    if not definition:
        return "no policy provided"
    for key, value in definition.items():
        fault = _value_fault(key, value) if key in keys else ""
        if fault:
            return fault
    fault = _ha_fault(definition)
    if not fault and _UPSTREAM in definition and _UPSTREAM_SET in definition:
        fault = f"cannot specify both {_UPSTREAM} and {_UPSTREAM_SET}"
    unknown = [(key, value) for key, value in definition.items() if key not in keys]
    if not fault and unknown:
        pairs = ",".join(f"{{{erlang(key)},{erlang(value)}}}" for key, value in unknown)
        fault = f"[{pairs}] are not recognised policy settings"
    return fault


def _value_fault(key: str, value: Value) -> str:
    good = True
    what = ""
    if key in _NUMBERS or key in _CONSUMER_TIMEOUT:
        low, what = (_NUMBERS | _CONSUMER_TIMEOUT)[key]
        good = type(value) is int and low <= value <= NUMBER_MAX
    elif key == MAX_AGE:
        good, what = age_us(value) > 0, "max age"
    elif key in _WITHOUT_EFFECT:
        low, high, what = _WITHOUT_EFFECT[key]
        good = type(value) is int and low <= value <= high
    elif key in _NAMES:
        what = _NAMES[key]
        good = type(value) is str and len(value.encode()) <= NAME_BYTES_MAX
    elif key in FEDERATION_KEYS:
        what = f"{key} name"
        good = type(value) is str and 0 < len(value.encode()) <= NAME_BYTES_MAX
    elif key in _CHOICES:
        choices, what = _CHOICES[key]
        good = type(value) in (int, str) and value in choices
    return "" if good else f"{erlang(value)} is not a valid {what}"


# -- mirrored queues -----------------------------------------------------------------------------


def _ha_fault(definition: Table) -> str:
    given = {key: definition[key] for key in _HA if key in definition}
    if not given:
        return ""
    mode = given.get("ha-mode")
    if mode is None:
        return _NO_HA_MODE
    check = _HA_PARAMS.get(mode) if isinstance(mode, str) else None
    if check is None:
        return f"{erlang(mode)} is not a valid ha-mode value"
    fault = check(given.get("ha-params"))
    if fault:
        return fault
    size = given.get("ha-sync-batch-size", 1)
    if type(size) is not int or size < 1:
        return f"ha-sync-batch-size takes an integer greater than 0, {erlang(size)} given"
    for key, (first, second) in _HA_WORDS.items():
        if key in given and given[key] not in (first, second):
            return f'{key} must be "{first}" or "{second}", got {erlang(given[key])}'
    return ""


def _all_params(params: Value) -> str:
    return "" if params is None else 'ha-mode="all" does not take parameters'


def _exactly_params(params: Value) -> str:
    if type(params) is int and params > 0:
        return ""
    return f'ha-mode="exactly" takes an integer, {erlang(params)} given'


def _nodes_params(params: Value) -> str:
    if params == ():
        return 'ha-mode="nodes" list must be non-empty'
    if isinstance(params, tuple) and all(isinstance(one, str) for one in params):
        return ""
    return f'ha-mode="nodes" takes a list of strings, {erlang(params)} given'


_NO_HA_MODE = (
    "ha-mode must be specified to specify ha-params, ha-sync-mode or ha-promote-on-shutdown"
)
_HA_PARAMS: dict[str, Callable[[Value], str]] = {
    "all": _all_params,
    "exactly": _exactly_params,
    "nodes": _nodes_params,
}
_HA_WORDS = {
    "ha-sync-mode": ("manual", "automatic"),
    "ha-promote-on-shutdown": ("always", "when-synced"),
    "ha-promote-on-failure": ("always", "when-synced"),
}


def erlang(value: Value) -> str:
    """A value as RabbitMQ prints it: tools compare these sentences."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'<<"{escaped}">>'
    if isinstance(value, tuple):
        return f"[{','.join(map(erlang, value))}]"
    if isinstance(value, dict):
        return f"#{{{','.join(f'{erlang(k)} => {erlang(v)}' for k, v in value.items())}}}"
    return repr(value)
