"""Qpid's ACL file: parses the rules that apply to this broker, and evaluates them as Qpid does.

    group makers ada bob@QPID
    acl allow makers create queue name=orders.* durable=true
    acl allow all publish exchange name=amq.topic routingkey=news.#
    acl deny-log all all

The rules are tried in order, and the first that fits decides; if none fits, the action is denied. A
line about something that does not exist here is an error: ignoring it would allow or deny something
that its author did not intend. A name that ends with * means all names with that prefix; ${user} is
the user's name, with @ and . written as _.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

LINES_MAX = 2000
SEARCHES_MAX = 50
"""Rules that may search for words in the middle of a routing key (#.a.#): with keys of many words
each takes a tenth of a millisecond."""
USER = "${user}"
ROUTING_KEY = "routingkey"
REALM = "@QPID"
ALL = "all"
ACTIONS: Mapping[str, frozenset[str]] = {
    "create": frozenset(("queue", "exchange")),
    "delete": frozenset(("queue", "exchange")),
    "purge": frozenset(("queue",)),
    "consume": frozenset(("queue",)),
    "access": frozenset(("queue", "exchange")),
    "bind": frozenset(("exchange",)),
    "unbind": frozenset(("exchange",)),
    "publish": frozenset(("exchange",)),
}
"""The actions possible here, with their objects."""
_OF_BINDING = frozenset(("name", "queuename", "routingkey"))
PROPERTIES: Mapping[tuple[str, str], frozenset[str]] = {
    ("create", "queue"): frozenset(("name", "durable", "autodelete", "exclusive")),
    ("create", "exchange"): frozenset(("name", "durable", "autodelete", "type")),
    ("bind", "exchange"): _OF_BINDING,
    ("unbind", "exchange"): _OF_BINDING,
    ("publish", "exchange"): frozenset(("name", "routingkey")),
}
"""The properties known for an action; for all others only the name."""
_FLAGS = frozenset(("durable", "autodelete", "exclusive"))
_ELSEWHERE = {
    "broker": "tags of users say who administers (qpidctl set_user_tags)",
    "method": "tags of users say who administers (qpidctl set_user_tags)",
    "query": "tags of users say who may look (qpidctl set_user_tags)",
    "link": "there are no links between brokers here",
    "connection": "use --connection-limit-per-ip, or qpidctl set_user_limits",
}


class BadAclFile(Exception):
    """A file is unusable; the text names the line, what is wrong, and what to do."""


class Question(NamedTuple):
    """An action that somebody is about to take."""

    action: str
    kind: str
    """queue or exchange."""
    facts: Mapping[str, str]
    """Its name and other known facts, by the names of properties."""


class _Asked(NamedTuple):
    """A question, with values that all rules look at computed once."""

    action: str
    kind: str
    facts: Mapping[str, str]
    user: str
    """In the form of ${user}."""
    words: list[str]
    """Of the routing key."""


_Words = tuple[str | None, ...]
"""Words of a routing key; None is any one word (*)."""


class _Wanted(NamedTuple):
    """The required value of a property. A user's name stands for itself, even if it is # or *."""

    text: str
    """Without the * at its end, if it is a prefix."""
    is_beginning: bool
    topic: tuple[_Words, ...]
    """For a routing key with wildcards: the parts between any number of words (#); else empty."""

    def matches(self, asked: _Asked, found: str) -> bool:
        if self.topic:
            parts = self.topic
            if USER in self.text:
                parts = tuple(_named(part, asked.user) for part in parts)
            return _is_topic(parts, asked.words)
        text = self.text.replace(USER, asked.user)
        return found.startswith(text) if self.is_beginning else found == text


class _Rule(NamedTuple):
    allows: bool
    who: frozenset[str] | None
    """None: everybody."""
    action: str
    kind: str
    properties: tuple[tuple[str, _Wanted], ...]

    def concerns(self, user: str) -> bool:
        return self.who is None or user in self.who

    def fits(self, user: str, asked: _Asked) -> bool:
        """An unknown value (the keys of dead letters) fits a rule that denies."""
        return (
            self.concerns(user)
            and self.action in (ALL, asked.action)
            and self.kind in (ALL, asked.kind)
            and all(
                wanted.matches(asked, asked.facts[key]) if key in asked.facts else not self.allows
                for key, wanted in self.properties
            )
        )


class Acl:
    """The rules of one file."""

    def __init__(self, rules: tuple[_Rule, ...]) -> None:
        self._rules = rules

    def __len__(self) -> int:
        return len(self._rules)

    def allows(self, user: str, question: Question) -> bool:
        """The verdict of the first rule that fits."""
        named = user.replace("@", "_").replace(".", "_")
        asked = _Asked(*question, named, question.facts.get(ROUTING_KEY, "").split("."))
        for rule in self._rules:
            if rule.fits(user, asked):
                return rule.allows
        return False

    def has_business_here(self, user: str) -> bool:
        """Whether any rule allows the user anything."""
        return any(rule.allows and rule.concerns(user) for rule in self._rules)


def _named(words: _Words, user: str) -> _Words:
    return tuple(None if word is None else word.replace(USER, user) for word in words)


def _is_topic(parts: tuple[_Words, ...], words: list[str]) -> bool:
    """Match as a topic exchange does. The first and the last part have fixed places; the parts
    between them are taken at their first match, and only these may be searched for repeatedly."""
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return len(words) == len(first) and _stands_at(first, words, 0)
    at, end = len(first), len(words) - len(last)
    if at > end or not _stands_at(first, words, 0) or not _stands_at(last, words, end):
        return False
    for part in parts[1:-1]:
        while not (at + len(part) <= end and _stands_at(part, words, at)):
            at += 1
            if at > end:
                return False
        at += len(part)
    return True


def _stands_at(part: _Words, words: list[str], at: int) -> bool:
    return all(one is None or one == words[at + i] for i, one in enumerate(part))


# -- the file ------------------------------------------------------------------------------------


def read_acl(text: str) -> Acl:
    """Return the rules of a file. Raises BadAclFile."""
    groups: dict[str, frozenset[str]] = {}
    users: set[str] = set()  # names taken for users: no later group may have one
    rules: list[_Rule] = []
    searches = 0
    for number, words in _lines(text):
        try:
            if words[0] == "group":
                _add_group(groups, users, words)
            elif words[0] == "acl":
                rule = _rule(groups, words)
                users |= {words[2]} - groups.keys()
                if rule is not None:
                    rules.append(rule)
                    searches += any(len(wanted.topic) > 2 for _, wanted in rule.properties)
                    if searches > SEARCHES_MAX:
                        raise BadAclFile(
                            f"more than {SEARCHES_MAX} rules have several # in their routingkey, "
                            "which takes long for each message; use one # in some of them"
                        )
            elif words[0] == "quota":
                raise BadAclFile("use qpidctl set_user_limits or set_vhost_limits for quotas")
            else:
                raise BadAclFile(f"'{words[0]}' is neither group nor acl")
        except BadAclFile as bad:
            raise BadAclFile(f"line {number}: {bad}") from None
    return Acl(tuple(rules))


def _lines(text: str) -> list[tuple[int, list[str]]]:
    r"""The words of each line, with its number; \ at the end continues in the next line."""
    found: list[tuple[int, list[str]]] = []
    begun = ""
    first = 0
    for number, line in enumerate(text.splitlines(), 1):
        if number > LINES_MAX:
            raise BadAclFile(f"it has more than {LINES_MAX} lines")
        first = first if begun else number
        begun += line
        if begun.rstrip().endswith("\\"):
            begun = begun.rstrip()[:-1] + " "
            continue
        if begun.strip() and not begun.lstrip().startswith("#"):
            found.append((first, begun.split()))
        begun = ""
    if begun:
        raise BadAclFile(f"line {first}: it ends with \\, and there is no next line")
    return found


def _add_group(groups: dict[str, frozenset[str]], users: set[str], words: list[str]) -> None:
    if len(words) < 3:
        raise BadAclFile("a group has a name and members: group NAME USER ...")
    _, name, *members = words
    if name == ALL or name in groups:
        raise BadAclFile(f"there is a group '{name}' already; take another name")
    if name in users:
        raise BadAclFile(f"'{name}' was used for a user before; put groups before their use")
    users |= set(members) - groups.keys()
    groups[name] = frozenset(
        user for member in members for user in groups.get(member, {member.removesuffix(REALM)})
    )


def _rule(groups: Mapping[str, frozenset[str]], words: list[str]) -> _Rule | None:
    """The rule of a line; None: it allows what everybody may do."""
    if len(words) < 4:
        raise BadAclFile("a rule is: acl allow|deny USER|GROUP|all ACTION [OBJECT [PROPERTY=...]]")
    _, verdict, whose, action, *rest = words
    if verdict not in ("allow", "deny", "deny-log"):
        why = "; what is allowed is not logged here" if verdict == "allow-log" else ""
        raise BadAclFile(f"'{verdict}' is neither allow, deny nor deny-log{why}")
    kind = rest[0] if rest else ALL
    _demand(action, kind)
    known = PROPERTIES.get((action, kind), frozenset(("name",)))
    properties = tuple(_property(word, known, f"{action} {kind}") for word in rest[1:])
    if action == "access":
        if verdict == "allow":
            return None
        raise BadAclFile("who asks whether something exists (access) is not refused here")
    who = None if whose == ALL else groups.get(whose, frozenset((whose.removesuffix(REALM),)))
    return _Rule(verdict == "allow", who, action, kind, properties)


def _demand(action: str, kind: str) -> None:
    """An existing action and object that go together."""
    if kind in _ELSEWHERE:
        raise BadAclFile(f"nothing here is a '{kind}' in that sense: {_ELSEWHERE[kind]}")
    if kind not in (ALL, "queue", "exchange"):
        raise BadAclFile(f"'{kind}' is neither queue, exchange nor all")
    if action != ALL and action not in ACTIONS:
        raise BadAclFile(f"'{action}' is none of {', '.join(ACTIONS)}, all")
    if action != ALL and kind != ALL and kind not in ACTIONS[action]:
        raise BadAclFile(f"'{action}' is nothing that is done to a '{kind}'")


def _property(word: str, known: frozenset[str], what: str) -> tuple[str, _Wanted]:
    key, equals, text = word.partition("=")
    key = key.lower()
    if not equals or not text:
        raise BadAclFile(f"'{word}' is not of the form PROPERTY=VALUE")
    if key not in known:
        raise BadAclFile(
            f"of '{what}' only {', '.join(sorted(known))} can be looked at, not '{key}'; "
            "limits of queues are set by policies (qpidctl set_policy)"
        )
    if key in _FLAGS and text not in ("true", "false"):
        raise BadAclFile(f"{key} is true or false, not '{text}'")
    if "${" in text.replace(USER, ""):
        raise BadAclFile(f"of what stands for a part of the user only ${{user}} is known: '{word}'")
    is_beginning = text.endswith("*")
    topic = _topic(text) if key == ROUTING_KEY else ()
    return key, _Wanted(text[:-1] if is_beginning else text, is_beginning, topic)


def _topic(text: str) -> tuple[_Words, ...]:
    """The parts between the # of a routing key; nothing if there are no wildcards."""
    words = text.split(".")
    if "#" not in words and "*" not in words:
        return ()
    parts: list[list[str | None]] = [[]]
    for word in words:
        if word == "#":
            parts.append([])
        else:
            parts[-1].append(None if word == "*" else word)
    inner = [part for part in parts[1:-1] if part]  # # twice in a row equals once
    return tuple(tuple(part) for part in (parts[0], *inner, *parts[1:][-1:]))
