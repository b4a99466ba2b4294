"""Qpid's ACL file, as far as this broker has what it speaks of; evaluated as Qpid does.

    group makers ada bob@QPID
    acl allow makers create queue name=orders.* durable=true
    acl allow all publish exchange name=amq.topic routingkey=news.#
    acl deny-log all all

The rules are looked at in their order, and the first that fits decides; where none does, it is
denied.  A line that asks for what does not exist here is an error: left out, it would allow or deny
something that its author did not mean.  Names end with * to mean all that begin so; ${user} is the
user's name, of which @ and . are written _.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

LINES_MAX = 2000
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
"""What may be done here, and to what."""
_OF_BINDING = frozenset(("name", "queuename", "routingkey"))
PROPERTIES: Mapping[tuple[str, str], frozenset[str]] = {
    ("create", "queue"): frozenset(("name", "durable", "autodelete", "exclusive")),
    ("create", "exchange"): frozenset(("name", "durable", "autodelete", "type")),
    ("bind", "exchange"): _OF_BINDING,
    ("unbind", "exchange"): _OF_BINDING,
    ("publish", "exchange"): frozenset(("name", "routingkey")),
}
"""What is known when that is asked; of everything else the name."""
_FLAGS = frozenset(("durable", "autodelete", "exclusive"))
_ELSEWHERE = {
    "broker": "tags of users say who administers (qpidctl set_user_tags)",
    "method": "tags of users say who administers (qpidctl set_user_tags)",
    "query": "tags of users say who may look (qpidctl set_user_tags)",
    "link": "there are no links between brokers here",
    "connection": "use --connection-limit-per-ip, or qpidctl set_user_limits",
}


class BadAclFile(Exception):
    """A file cannot be taken; the text names the line, what is wrong, and what to do."""


class Question(NamedTuple):
    """What somebody is about to do."""

    action: str
    kind: str
    """queue or exchange."""
    facts: Mapping[str, str]
    """Its name, and what else is known, by the names of properties."""


class _Rule(NamedTuple):
    allows: bool
    who: frozenset[str] | None
    """None: everybody."""
    action: str
    kind: str
    properties: tuple[tuple[str, str], ...]

    def concerns(self, user: str) -> bool:
        return self.who is None or user in self.who

    def fits(self, user: str, question: Question) -> bool:
        """What is not known yet (the keys of dead letters) fits where it is denied."""
        return (
            self.concerns(user)
            and self.action in (ALL, question.action)
            and self.kind in (ALL, question.kind)
            and all(
                _matches(key, text, user, question.facts[key])
                if key in question.facts
                else not self.allows
                for key, text in self.properties
            )
        )


class Acl:
    """The rules of one file."""

    def __init__(self, rules: tuple[_Rule, ...]) -> None:
        self._rules = rules

    def __len__(self) -> int:
        return len(self._rules)

    def allows(self, user: str, question: Question) -> bool:
        """What the first rule that fits says."""
        for rule in self._rules:
            if rule.fits(user, question):
                return rule.allows
        return False

    def has_business_here(self, user: str) -> bool:
        """Whether any rule allows the user anything."""
        return any(rule.allows and rule.concerns(user) for rule in self._rules)


def _matches(key: str, text: str, user: str, found: str) -> bool:
    wanted = text.replace("${user}", user.replace("@", "_").replace(".", "_"))
    words = wanted.split(".")
    if key == "routingkey" and ("#" in words or "*" in words):
        return _is_topic(words, found.split("."))
    return found.startswith(wanted[:-1]) if wanted.endswith("*") else found == wanted


def _is_topic(pattern: list[str], words: list[str]) -> bool:
    """As a topic exchange matches: * is one word, # any number of them.  In time that is bounded by
    the product of both lengths."""
    reached = {0}  # how much of the pattern may be used up by the words so far
    for word in (*words, None):
        for at in range(len(pattern)):
            if at in reached and pattern[at] == "#":
                reached.add(at + 1)
        if word is None:
            break
        reached = {
            at if pattern[at] == "#" else at + 1
            for at in reached
            if at < len(pattern) and pattern[at] in ("#", "*", word)
        }
    return len(pattern) in reached


# -- the file ------------------------------------------------------------------------------------


def read_acl(text: str) -> Acl:
    """Return the rules of a file.  Raises BadAclFile."""
    groups: dict[str, frozenset[str]] = {}
    users: set[str] = set()  # what was taken for a user: no group may have the name later
    rules: list[_Rule] = []
    for number, words in _lines(text):
        try:
            if words[0] == "group":
                _add_group(groups, users, words)
            elif words[0] == "acl":
                rule = _rule(groups, words)
                users |= {words[2]} - groups.keys()
                if rule is not None:
                    rules.append(rule)
            elif words[0] == "quota":
                raise BadAclFile("use qpidctl set_user_limits or set_vhost_limits for quotas")
            else:
                raise BadAclFile(f"'{words[0]}' is neither group nor acl")
        except BadAclFile as bad:
            raise BadAclFile(f"line {number}: {bad}") from None
    return Acl(tuple(rules))


def _lines(text: str) -> list[tuple[int, list[str]]]:
    """The words of each line, with its number; \\ at the end goes on in the next."""
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
        raise BadAclFile(f"line {first}: it goes on (\\), and there is no next line")
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
    """The rule of a line; None: it allows what everybody may."""
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
    """An action and an object that there are, and that go together."""
    if kind in _ELSEWHERE:
        raise BadAclFile(f"nothing here is a '{kind}' in that sense: {_ELSEWHERE[kind]}")
    if kind not in (ALL, "queue", "exchange"):
        raise BadAclFile(f"'{kind}' is neither queue, exchange nor all")
    if action != ALL and action not in ACTIONS:
        raise BadAclFile(f"'{action}' is none of {', '.join(ACTIONS)}, all")
    if action != ALL and kind != ALL and kind not in ACTIONS[action]:
        raise BadAclFile(f"'{action}' is nothing that is done to a '{kind}'")


def _property(word: str, known: frozenset[str], what: str) -> tuple[str, str]:
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
    if "${" in text.replace("${user}", ""):
        raise BadAclFile(f"of what stands for a part of the user only ${{user}} is known: '{word}'")
    return key, text
