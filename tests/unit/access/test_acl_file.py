"""Qpid's ACL files: how they are read, what is refused, and what clients may do by them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.access.access import Access, Rights
from broker.access.acl_file import SEARCHES_MAX, Acl, BadAclFile, Question, read_acl
from broker.access.backends import Backends
from broker.amqp.fields import Value
from broker.listener.client_listener import AccessFileError, acl_in
from broker.machine.machine import Machine
from tests.support.amqp_peer import opening, publish
from tests.support.gateway_loop import Loop, Peer


def allows(text: str, user: str, action: str, kind: str, **facts: str) -> bool:
    return read_acl(text).allows(user, Question(action, kind, facts))


def test_the_first_matching_rule_decides_and_the_default_is_deny() -> None:
    text = """
    # the order matters
    acl deny ada delete queue name=kept
    acl allow ada all queue
    acl deny-log ada all all
    acl allow all publish exchange
    """
    assert not allows(text, "ada", "delete", "queue", name="kept")
    assert allows(text, "ada", "delete", "queue", name="other")
    assert not allows(text, "ada", "publish", "exchange", name="x")
    assert allows(text, "bob", "publish", "exchange", name="x")
    assert not allows(text, "bob", "consume", "queue", name="x")
    assert not allows("", "ada", "consume", "queue", name="q")
    assert allows("acl allow all all queue name=q", "ada", "purge", "queue", name="q")
    assert not allows("acl allow all all queue name=q", "ada", "purge", "queue", name="r")
    assert allows("acl allow all all", "ada", "consume", "queue", name="q")


def test_groups_users_with_a_realm_and_continued_lines() -> None:
    text = "group few ada@QPID \\\n  bob\ngroup more few eve\nacl allow more consume queue"
    for user, is_good in (("ada", True), ("bob", True), ("eve", True), ("mallory", False)):
        assert allows(text, user, "consume", "queue", name="q") is is_good


@pytest.mark.parametrize(
    ("pattern", "found", "fits"),
    [
        ("news", "news", True), ("news", "news.x", False), ("news*", "newsletter", True),
        ("a.*", "a.b", True), ("a.*", "a.b.c", False), ("a.#", "a", True), ("a.#", "a.b.c", True),
        ("#.z", "x.y.z", True), ("#", "", True), ("*.b", "a.b", True), ("a.#.#.b", "a.b", True),
        ("a.#.b", "a.c", False), ("${user}.*", "ada_x_y.k", True), ("${user}.*", "ada.k", False),
    ],
)  # fmt: skip
def test_routing_keys_match_as_in_a_topic_exchange(pattern: str, found: str, fits: bool) -> None:
    text = f"acl allow all publish exchange name=x routingkey={pattern}"
    seen = allows(text, "ada@x.y", "publish", "exchange", name="x", routingkey=found)
    assert seen is fits


WORD = st.sampled_from(("a", "b"))


def slowly(pattern: list[str], words: list[str]) -> bool:
    """The same by exhaustive search."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(slowly(pattern[1:], words[at:]) for at in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and slowly(pattern[1:], words[1:])


@given(st.lists(WORD | st.sampled_from("*##"), max_size=7), st.lists(WORD, min_size=1, max_size=7))
def test_routing_keys_match_as_by_exhaustive_search(pattern: list[str], words: list[str]) -> None:
    text = f"acl allow all publish exchange routingkey={'.'.join(['a', *pattern, '*'])}"
    for key in (words, ["a", *words]):  # most of the first sort differ at once
        seen = allows(text, "ada", "publish", "exchange", name="x", routingkey=".".join(key))
        assert seen is slowly(["a", *pattern, "*"], key)


def test_a_key_of_many_words_takes_a_bounded_time() -> None:
    """A thousand rules of many words, with the permitted maximum of the slow kind."""
    rule = "acl allow all publish exchange routingkey="
    text = f"{rule}{'#.a.' * 40}#.b\n" * SEARCHES_MAX + f"{rule}{'a.' * 100}#.b\n" * 1900
    assert not allows(text, "ada", "publish", "exchange", name="x", routingkey="a." * 120 + "a")
    with pytest.raises(BadAclFile, match=rf"line {SEARCHES_MAX + 1}: .* use one # in some of them"):
        read_acl(f"{rule}#.a.#\n" * (SEARCHES_MAX + 1))


@pytest.mark.parametrize("user", ["*", "#", "a*"])
def test_the_name_of_a_user_is_no_wildcard(user: str) -> None:
    """Otherwise an administrator of users could make one whose own names match everybody's."""
    text = "acl allow all publish exchange name=${user} routingkey=${user}.k"
    text += "\nacl allow all publish exchange name=x routingkey=${user}.#"
    for name, key, fits in ((user, f"{user}.k", True), ("x", f"{user}.a.b", True),
                            ("other", f"{user}.k", False), (user, "other.k", False),
                            ("x", "other.a.b", False)):  # fmt: skip
        assert allows(text, user, "publish", "exchange", name=name, routingkey=key) is fits


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("acl allow bob", "line 1: a rule is: acl allow"),
        ("\nacl permit bob all", "line 2: 'permit' is neither"),
        ("acl allow-log bob all", "what is allowed is not logged here"),
        ("acl allow bob fly", "'fly' is none of create, delete"),
        ("acl allow bob publish queue", "'publish' is nothing that is done to a 'queue'"),
        ("acl allow bob create link", "nothing here is a 'link'"),
        ("acl allow bob access method", "qpidctl set_user_tags"),
        ("acl deny all create connection host=10.0.0.1", "--connection-limit-per-ip"),
        ("acl allow bob create queue maxqueuesize=5", "not 'maxqueuesize'; limits of queues"),
        ("acl allow bob create queue name", "'name' is not of the form PROPERTY=VALUE"),
        ("acl allow bob all queue durable=true", "of 'all queue' only name can be looked at"),
        ("acl deny bob access queue", "(access) is not refused here"),
        ("acl allow bob create queue name=${domain}", "only ${user} is known"),
        ("quota queues 10 bob", "line 1: use qpidctl set_user_limits"),
        ("grant bob", "'grant' is neither group nor acl"),
        ("group one", "a group has a name and members"),
        ("group g a\ngroup g b", "line 2: there is a group 'g' already"),
        ("acl allow bob \\", "line 1: it ends with"),
        ("acl deny g all\ngroup g bob", "line 2: 'g' was used for a user before"),
        ("group h g ada\ngroup g bob", "line 2: 'g' was used for a user before"),
        ("acl deny bob create queue durable=True", "durable is true or false, not 'True'"),
    ],
)
def test_unsupported_rules_are_refused_with_their_line(text: str, said: str) -> None:
    with pytest.raises(BadAclFile) as refused:
        read_acl(text)
    assert said in str(refused.value)


def test_the_error_names_option_and_file(tmp_path: Path) -> None:
    file = tmp_path / "acl"
    with pytest.raises(AccessFileError, match=r"--acl-file .*acl: No such file"):
        acl_in(file)
    file.write_text("acl")
    with pytest.raises(AccessFileError, match=r"--acl-file .*acl: line 1: a rule is"):
        acl_in(file)
    file.write_text("acl deny all all", encoding="utf-8-sig")
    rules = acl_in(file)
    assert rules is not None
    assert len(rules) == 1


# -- what clients may do -------------------------------------------------------------------------

CALLS: dict[str, tuple[str, tuple[Value, ...]]] = {
    "create queue name=n* durable=true": (
        "queue.declare", ("new", False, True, False, False, False, {})
    ),
    "create exchange name=n* type=topic": (
        "exchange.declare", ("new", "topic", False, False, False, False, False, {})
    ),
    "delete queue name=q": ("queue.delete", ("q", False, False, False)),
    "delete exchange name=x": ("exchange.delete", ("x", False, False)),
    "purge queue name=q": ("queue.purge", ("q", False)),
    "consume queue name=q": ("basic.get", ("q", False)),
    "bind exchange name=x queuename=q routingkey=k": ("queue.bind", ("q", "x", "k", False, {})),
    "unbind exchange name=x queuename=q routingkey=k": ("queue.unbind", ("q", "x", "k", {})),
}  # fmt: skip


def member(acl: str) -> tuple[Loop, Peer]:
    backends = Backends()
    loop = Loop(backends=backends)
    owner = loop.connect().open(1)
    owner.declare(1, "q")
    made = owner.call(1, "exchange.declare", "x", "direct", *(False,) * 5, {})
    assert made == [("exchange.declare-ok",)]
    backends.replace({}, read_acl(acl))
    return loop, loop.connect().open(1)


@pytest.mark.parametrize("rule", list(CALLS))
def test_each_rule_allows_its_method_and_no_other(rule: str) -> None:
    for allowed in CALLS:
        _, peer = member(f"acl allow guest {allowed}")
        name, args = CALLS[rule]
        (answer, *_) = peer.call(1, name, *args)
        refused = answer[0] == "channel.close"
        assert refused is (allowed != rule), (allowed, answer)
        if refused:
            assert answer[1] == 403


def test_publishes_are_checked_by_their_keys() -> None:
    _, peer = member("acl allow guest publish exchange name=amq.default routingkey=q*")
    assert peer.send(publish(1, "", "q"), publish(1, "", "q")) == []
    (closed,) = peer.send(publish(1, "", "other"))
    assert closed.args[:2] == (
        403, "ACCESS_REFUSED - access to exchange 'amq.default' in vhost '/' refused for user "
        "'guest'",
    )  # fmt: skip


def test_dead_lettering_needs_the_right_to_publish() -> None:
    arguments = {"x-dead-letter-exchange": "x"}
    declare = ("new", False, False, False, False, False, arguments)
    rules = ["acl allow guest create queue", "acl allow guest consume queue"]
    _, peer = member("\n".join(rules))
    assert peer.call(1, "queue.declare", *declare)[0][0] == "channel.close"  # type: ignore[arg-type]
    _, peer = member("\n".join([*rules, "acl allow guest publish exchange name=x"]))
    assert peer.call(1, "queue.declare", *declare)[0][0] == "queue.declare-ok"  # type: ignore[arg-type]


def test_dead_letters_do_not_evade_a_denied_key() -> None:
    """Their keys are not known when the queue is declared."""
    _, peer = member("acl deny guest publish exchange name=x routingkey=secret\nacl allow all all")
    arguments = {"x-dead-letter-exchange": "x", "x-dead-letter-routing-key": "secret"}
    declare = ("new", False, False, False, False, False, arguments)
    assert peer.call(1, "queue.declare", *declare)[0][:2] == ("channel.close", 403)  # type: ignore[arg-type]
    alternate = ("y", "fanout", *(False,) * 5, {"alternate-exchange": "x"})
    peer.open(2)
    assert peer.call(2, "exchange.declare", *alternate)[0][:2] == ("channel.close", 403)  # type: ignore[arg-type]


def test_a_user_whom_no_rule_allows_anything_is_refused_at_the_open() -> None:
    loop = Loop({"bob": "guest"}, backends=Backends(acl=read_acl("acl allow guest all")))
    (*_, closed) = Peer(loop).send(opening(user="bob"))
    assert closed.args[0] == 530
    (*_, opened) = Peer(loop).send(opening())
    assert opened.method == "connection.open-ok"


def test_new_rules_apply_at_once_to_connected_clients() -> None:
    backends = Backends(acl=read_acl("acl allow all all"))
    loop = Loop(backends=backends)
    peer = loop.connect().open(1)
    assert peer.send(publish(1, "", "q")) == []
    backends.replace({}, read_acl("acl deny all all"))
    loop.turn()
    assert peer.send(publish(1, "", "q"))[0].args[0] == 403


def test_the_decision_for_a_key_is_cached_until_something_changes() -> None:
    """Each decision checks all rules, and each publish would wait for it."""
    looks: list[str] = []
    acl = read_acl("acl allow bob publish exchange routingkey=k*")

    class Counted(Acl):
        def allows(self, user: str, question: Question) -> bool:
            looks.append(question.facts["routingkey"])
            return acl.allows(user, question)

    access = Access(lambda: Machine("a"), backends=Backends(acl=Counted(())))
    rights = Rights(access, "bob", "/")
    assert [bool(rights.refuses_publish("x", [key])) for key in ("k1", "k1", "no", "no", "k2")] == [
        False, False, True, True, False
    ]  # fmt: skip
    assert looks == ["k1", "no", "no", "k2"]
    rights.forget()
    assert not rights.refuses_publish("x", ["k1"])
    assert looks[-1] == "k1"
    for number in range(300):
        rights.refuses_publish("x", [f"k{number}"])
    assert len(rights._keys) <= 256
