"""Patterns and settings of policies, as operators write them."""

import pytest

from broker.machine.commands import Table, Value
from broker.machine.policies.pattern import PatternError, compiled
from broker.machine.policies.settings import operator_policy_fault, policy_fault


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("", ["anything"], []),
        ("^orders\\.", ["orders.new"], ["my.orders.new"]),
        ("orders", ["my.orders.new"], ["order"]),
        ("^(?!amq\\.).*", ["q", "amqp"], ["amq.gen-1"]),
        ("^(?!(amq\\.)|(.*_fanout_)|(reply_)).*", ["q"], ["a_fanout_1", "reply_1", "amq.x"]),
        ("^(?=a)(?!.*z$)..$", ["ab"], ["az", "bb", "abc"]),
        ("^(?![)\\]])x", ["x"], ["y"]),
        ("^(?!a[]|])q|b$", [], []),
        ("^a[]|(]b$", ["a|b", "a]b", "a(b"], ["ab"]),
    ],
)
def test_a_pattern_matches(pattern: str, matching: list[str], others: list[str]) -> None:
    if not matching:  # an alternative not bound by the look-ahead
        with pytest.raises(PatternError):
            compiled(pattern)
        return
    found = compiled(pattern)
    assert [name for name in (*matching, *others) if found.matches(name)] == matching


@pytest.mark.parametrize(
    "pattern", ["(a", "a(?!b)", "^(?!a", "(a{1000}){1000}", "(.)\\1", "\ud800"]
)
def test_an_invalid_pattern_is_explained(pattern: str) -> None:
    with pytest.raises(PatternError, match=r"invalid|missing|not text"):
        compiled(pattern)


def test_a_pattern_prone_to_catastrophic_backtracking_matches_at_once() -> None:
    assert not compiled("^(a*)*(a*)*(a*)*b$").matches("a" * 255)


def test_a_long_pattern_is_refused() -> None:
    with pytest.raises(PatternError, match="longer than 4096"):
        compiled("a" * 5000)


def policy(**settings: Value) -> Table:
    return {"pattern": "", "definition": {key.replace("_", "-"): v for key, v in settings.items()}}


GOOD: list[Table] = [
    policy(max_length=0, expires=1, overflow="reject-publish-dlx", queue_mode="lazy"),
    policy(delivery_limit=3, dead_letter_exchange="", alternate_exchange="x", queue_version=2),
    policy(ha_mode="all", ha_sync_mode="automatic", ha_promote_on_shutdown="always"),
    policy(ha_mode="exactly", ha_params=2, ha_sync_batch_size=1),
    policy(ha_mode="nodes", ha_params=("a@x", "b@x")),
    policy(federation_upstream="far"),
    policy(federation_upstream_set="all", max_length=3),
    policy(max_in_memory_length=0, max_in_memory_bytes=5, target_group_size=3),
    policy(stream_max_segment_size_bytes=1000, stream_filter_size_bytes=16, max_age="7D"),
    {**policy(max_length=1), "priority": -5, "apply-to": "classic_queues"},
]
BAD: list[tuple[Table, str]] = [
    ({"pattern": ""}, 'Key "definition" not found'),
    ({"definition": {}}, 'Key "pattern" not found'),
    (policy(), "no policy provided"),
    (policy(x=1, y="z"), '[{<<"x">>,1},{<<"y">>,<<"z">>}] are not recognised policy settings'),
    (policy(max_length=-1), "-1 is not a valid maximum length"),
    (policy(max_in_memory_length="5"), '<<"5">> is not a valid maximum memory in length'),
    (policy(stream_filter_size_bytes=15), "15 is not a valid filter size"),
    (policy(max_length=True), "true is not a valid maximum length"),
    (policy(expires=0), "0 is not a valid queue expiry"),
    (policy(message_ttl="1"), '<<"1">> is not a valid message TTL'),
    (policy(overflow="spill"), '<<"spill">> is not a valid overflow value'),
    (policy(dead_letter_exchange=("a",)), '[<<"a">>] is not a valid dead letter exchange name'),
    (policy(ha_params=2), "ha-mode must be specified to specify ha-params"),
    (policy(ha_mode="some"), '<<"some">> is not a valid ha-mode value'),
    (policy(ha_mode="all", ha_params=2), 'ha-mode="all" does not take parameters'),
    (policy(ha_mode="exactly", ha_params=0), 'ha-mode="exactly" takes an integer, 0 given'),
    (policy(ha_mode="nodes", ha_params=()), 'ha-mode="nodes" list must be non-empty'),
    (policy(ha_mode="nodes"), 'ha-mode="nodes" takes a list of strings, none given'),
    (policy(ha_mode="all", ha_sync_mode="x"), 'must be "manual" or "automatic", got <<"x">>'),
    (policy(ha_mode="all", ha_sync_batch_size=0), "takes an integer greater than 0, 0 given"),
    (
        {**policy(max_length=1), "priority": "1"},
        'priority should be a number, actually was <<"1">>',
    ),
    (policy(federation_upstream=""), '<<"">> is not a valid federation-upstream name'),
    (policy(federation_upstream="a", federation_upstream_set="b"), "cannot specify both"),
    ({**policy(max_length=1), "apply-to": "users"}, "apply-to 'users' unrecognised"),
    ({**policy(max_length=1), "apply_to": "all"}, 'Unrecognised terms [<<"apply_to">>]'),
    ({"pattern": 1, "definition": {"expires": 1}}, "pattern should be binary, actually was 1"),
    ({"pattern": "", "definition": 1}, "definition must be a dictionary: 1"),
]


@pytest.mark.parametrize("body", GOOD)
def test_a_valid_policy_is_accepted(body: Table) -> None:
    assert policy_fault(body) == ""


@pytest.mark.parametrize(("body", "fault"), BAD)
def test_a_refusal_names_what_is_wrong_with_a_policy(body: Table, fault: str) -> None:
    assert fault in policy_fault(body)


def test_operator_policies_may_only_limit() -> None:
    body = policy(max_length=1, delivery_limit=1, max_in_memory_bytes=1)
    assert operator_policy_fault(body) == ""
    fault = operator_policy_fault(policy(overflow="drop-head"))
    assert fault == '[{<<"overflow">>,<<"drop-head">>}] are not recognised policy settings'
