"""Rights of a client that an auth server let in: the server decides, now or a moment ago."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from broker.access.access import (
    DEFAULT_EXCHANGE,
    Access,
    Needs,
    Resource,
    Rights,
    Topic,
    refused_resource,
    refused_to_all,
    refused_topic,
    refused_vhost,
)
from broker.access.auth_server import RESOURCE, TOPIC, VHOST, Answer, AuthQuestion, AuthServer

QUESTIONS_MAX = 64
"""Questions for one method: a message may name any number of keys in CC and BCC."""
PUBLISHES_KEPT_MAX = 256


class Origin(NamedTuple):
    """What the server is told of a client beside its user."""

    tags: tuple[str, ...]
    """As the server gave them at login."""
    host: str


class AskedRights(Rights):
    """The rights of one client. `told` answers a question asked a second time: answers are valid
    for the method they were asked for, even if they are cached nowhere else."""

    def __init__(
        self,
        access: Access,
        user: str,
        vhost: str,
        server: AuthServer,
        origin: Origin,
        told: dict[AuthQuestion, Answer],
    ) -> None:
        super().__init__(access, user, vhost)
        self._server, self._told = server, told
        self._tags, self._host = " ".join(origin.tags), origin.host
        self._judged: tuple[AuthQuestion, ...] = ()  # the questions of the last check
        self._publishes: dict[tuple[str, tuple[str, ...]], float] = {}
        """Until when it may publish there with these keys, if keys are checked. Looked up for each
        publish, because writing a question takes longer than answering it."""

    def forget(self) -> None:
        """The definitions have changed, or the server's answers no longer apply."""
        super().forget()
        self._publishes.clear()

    def refuses_entry(self) -> str | None:
        question = AuthQuestion(
            VHOST,
            (("username", self.user), ("vhost", self.vhost), ("ip", self._host),
             ("tags", self._tags)),
        )  # fmt: skip
        return self._judge({question: refused_vhost(self.user, self.vhost)})

    def refuses(self, needs: Needs) -> str | None:
        if refusal := refused_to_all(self.vhost, needs.resources):
            return refusal
        wanted = dict(self._resource(one) for one in needs.resources)
        wanted.update(self._topic(one) for one in needs.topics if self._is_of_topics(one))
        if len(wanted) > QUESTIONS_MAX:
            return (
                f"{needs.method} takes {len(wanted)} permissions, and the server that gives them "
                f"is asked for not more than {QUESTIONS_MAX} at once; name fewer keys in CC and BCC"
            )
        return self._judge(wanted)

    def refuses_publish(self, exchange: str, keys: Collection[str]) -> str | None:
        of_topics = self.access.may_be_of_topics(self.vhost, exchange)
        what = exchange, tuple(keys) if of_topics else ()
        if self._publishes.get(what, 0.0) > self._server.clock():
            return ""
        resources = (Resource("write", "exchange", exchange),)
        topics = tuple(Topic("write", exchange, key) for key in what[1])
        refusal = self.refuses(Needs("basic.publish", resources, topics=topics))
        if refusal == "":
            if len(self._publishes) >= PUBLISHES_KEPT_MAX:
                self._publishes.clear()
            self._publishes[what] = min(map(self._server.kept_until, self._judged))
        return refusal

    def _is_of_topics(self, topic: Topic) -> bool:
        return self.access.may_be_of_topics(self.vhost, topic.exchange)

    def _resource(self, resource: Resource) -> tuple[AuthQuestion, str]:
        permission, kind, name = resource
        name = name or DEFAULT_EXCHANGE if kind == "exchange" else name
        fields = (
            ("username", self.user), ("vhost", self.vhost), ("resource", kind), ("name", name),
            ("permission", permission), ("tags", self._tags),
        )  # fmt: skip
        return AuthQuestion(RESOURCE, fields), refused_resource(self.user, self.vhost, kind, name)

    def _topic(self, topic: Topic) -> tuple[AuthQuestion, str]:
        permission, exchange, key = topic
        fields = (
            ("username", self.user), ("vhost", self.vhost), ("resource", "topic"),
            ("name", exchange), ("permission", permission), ("routing_key", key),
            ("tags", self._tags),
        )  # fmt: skip
        return AuthQuestion(TOPIC, fields), refused_topic(self.user, self.vhost, exchange, key)

    def _judge(self, wanted: dict[AuthQuestion, str]) -> str | None:
        """The text of the first refusal; None: some answers are missing."""
        self._judged = tuple(wanted)
        known = {one: self._told.get(one) or self._server.kept(one) for one in wanted}
        self.missing = tuple(one for one, answer in known.items() if answer is None)
        if self.missing:
            return None
        self._told.clear()
        return next(
            (wanted[one] for one, answer in known.items() if answer and not answer.allowed), ""
        )
