"""Which policy applies to a queue or an exchange, and the resulting settings.

At most one policy and one operator policy apply: of those that match the name, the one with the
highest priority, and of equal priorities the first by name (RabbitMQ takes any of them). Together
they make the effective definition: of two numbers the lower one, because an operator policy limits.
The queue's own declaration takes precedence, but of two numbers the lower one applies here as well.
"""

from broker.machine.commands import Table, Value
from broker.machine.digest import canonical, item_hash
from broker.machine.policies.pattern import PatternError, compiled
from broker.machine.state import Applied, Exchange, Policy, Queue, Ranked, Vhost

LOWER = ("message-ttl", "expires", "max-length", "max-length-bytes", "delivery-limit")
NOTHING: Ranked = ((), ())
_OF_TYPE = {"classic_queues": "classic", "quorum_queues": "quorum", "streams": "stream"}


def policy_of(vhost: str, name: str, body: Table, operator: bool) -> Policy:
    """Build a policy from a checked definition (settings.py)."""
    pattern, definition = body["pattern"], body["definition"]
    priority, apply_to = body.get("priority", 0), body.get("apply-to", "all")
    assert isinstance(pattern, str)
    assert isinstance(definition, dict)
    assert isinstance(priority, int)
    assert isinstance(apply_to, str)
    content = item_hash("policy", operator, vhost, name, canonical(body))
    return Policy(content, vhost, name, operator, pattern, definition, priority, apply_to, body)


def ranked(policies: list[Policy]) -> tuple[Policy, ...]:
    """In the order in which they are tried."""
    return tuple(sorted(policies, key=lambda one: (-one.priority, one.name)))


def policies_of_queue(vhost: Vhost, name: str, arguments: Table) -> Applied:
    kind = arguments.get("x-queue-type")
    kinds = ("all", "queues", *(to for to, one in _OF_TYPE.items() if one == (kind or "classic")))
    return _first_of_each(vhost, name, kinds)


def policies_of_exchange(vhost: Vhost, exchange: Exchange) -> Applied:
    """Looked up when needed: no messages wait in an exchange that would have to change."""
    if exchange.looked_in is not vhost.policies:
        exchange.looked_in = vhost.policies
        exchange.applied = _first_of_each(vhost, exchange.name, ("all", "exchanges"))
    return exchange.applied


def _first_of_each(vhost: Vhost, name: str, kinds: tuple[str, ...]) -> Applied:
    policies, operators = vhost.policies
    return (_first(policies, name, kinds), _first(operators, name, kinds))


def _first(policies: tuple[Policy, ...], name: str, kinds: tuple[str, ...]) -> Policy | None:
    for policy in policies:
        if policy.apply_to in kinds and _matches(policy.pattern, name):
            return policy
    return None


def _matches(pattern: str, name: str) -> bool:
    try:
        return compiled(pattern).matches(name)
    except PatternError:
        return False  # the origin refused anything that is not an expression


def effective_definition(policy: Policy | None, operator: Policy | None) -> Table:
    """The combined settings of both policies; empty without either."""
    if policy is None or operator is None:
        only = policy or operator
        return only.definition if only is not None else {}
    merged = dict(policy.definition)
    for key, value in operator.definition.items():
        merged[key] = _merged(key, merged[key], value) if key in merged else value
    return merged


def _merged(key: str, value: Value, operators: Value) -> Value:
    """The value of a key that both set. For `ha-*` the larger number of copies: see settings.py."""
    if key in LOWER:
        assert isinstance(value, int)
        assert isinstance(operators, int)
        return min(value, operators)
    if key == "ha-mode":
        return next((one for one in ("all", "exactly") if one in (value, operators)), value)
    if key == "ha-params":
        if isinstance(value, int) or isinstance(operators, int):
            numbers = [one for one in (value, operators) if isinstance(one, int)]
            return max(numbers)
        return value if _count(value) > _count(operators) else operators
    return operators


def _count(names: Value) -> int:
    return len(names) if isinstance(names, tuple) else 0


def policies_element(queue: Queue) -> int:
    """The digest element of the policies that apply to the queue; 0 if none does."""
    policy, operator = queue.policy, queue.operator_policy
    if policy is None and operator is None:
        return 0
    contents = [one.content if one is not None else 0 for one in (policy, operator)]
    return item_hash("policies", queue.number, *contents)
