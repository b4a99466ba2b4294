"""Which options members must have alike: every option has its kind here.

What should be equal travels in each member's state report, beside numbers of the release that must
be (`vsync/primary/settings.py`).  So do `REPORTED` options that must be equal; the others of that
kind have checks of their own, which name both values: hellos, keys, the voter set, the stores.
Passwords do not travel.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from broker.options.active_passive import DEFAULTS


class Kind(Enum):
    """Whether an option may differ among the members of a cluster."""

    EQUAL = "must be equal"
    ALIKE = "should be equal"
    OWN = "may differ"


KINDS: Mapping[str, Kind] = {
    "cluster-name": Kind.EQUAL,
    "cluster-size": Kind.EQUAL,
    "cluster-votes": Kind.EQUAL,
    "cluster-expected-votes": Kind.EQUAL,
    "cluster-two-node": Kind.EQUAL,
    "cluster-wait-for-all": Kind.EQUAL,
    "cluster-auto-tie-breaker": Kind.EQUAL,
    "cluster-last-man-standing": Kind.EQUAL,
    "cluster-last-man-standing-window": Kind.EQUAL,
    "cluster-arbitrator": Kind.EQUAL,
    "cluster-mechanism": Kind.EQUAL,
    "cluster-username": Kind.EQUAL,
    "cluster-password": Kind.EQUAL,
    "no-data-dir": Kind.EQUAL,
    "ha-cluster": Kind.EQUAL,
    "ha-promotion": Kind.EQUAL,
    "shutdown-on-master-failure": Kind.EQUAL,
    "master-failure-timeout": Kind.ALIKE,
    # The strictest of the members' limits slows down, or ends, what the others would have borne.
    "cluster-cman": Kind.ALIKE,
    "clock-bound": Kind.ALIKE,
    "disk-lag-max": Kind.ALIKE,
    "disk-backlog-max": Kind.ALIKE,
    # A member's own place, disk and habits.
    "cluster-bind": Kind.OWN,
    "cluster-nodes": Kind.OWN,
    "cluster-mcastaddr": Kind.OWN,
    "cluster-mcastport": Kind.OWN,
    "cluster-key": Kind.OWN,
    "cluster-allow": Kind.OWN,
    "cluster-url": Kind.OWN,
    "port": Kind.OWN,
    "interface": Kind.OWN,
    "loopback-users": Kind.OWN,
    "cert-login-from": Kind.OWN,
    "anonymous-user": Kind.OWN,
    "auth-backends": Kind.ALIKE,
    "max-message-size": Kind.ALIKE,
    "consumer-timeout": Kind.ALIKE,
    "heartbeat": Kind.OWN,
    "auth-file": Kind.OWN,
    "acl-file": Kind.OWN,
    "auth-http-user-path": Kind.OWN,
    "auth-http-vhost-path": Kind.OWN,
    "auth-http-resource-path": Kind.OWN,
    "auth-http-topic-path": Kind.OWN,
    "auth-http-method": Kind.OWN,
    "auth-http-ca": Kind.OWN,
    "auth-cache-seconds": Kind.OWN,
    "management-port": Kind.OWN,
    "management-tls-port": Kind.OWN,
    "management-interface": Kind.OWN,
    "load-definitions": Kind.OWN,
    "hac": Kind.OWN,
    "hac-peer": Kind.OWN,
    "master-slave": Kind.OWN,
    "master-connector": Kind.OWN,
    "ha-brokers-url": Kind.OWN,
    "ha-public-url": Kind.OWN,
    "ha-replicate": Kind.OWN,
    "ha-queue-replication": Kind.OWN,
    "ha-backup-timeout": Kind.ALIKE,
    "ha-username": Kind.OWN,
    "ha-password": Kind.OWN,
    "ha-mechanism": Kind.OWN,
    "link-heartbeat-interval": Kind.OWN,
    "link-maintenance-interval": Kind.OWN,
    "prometheus-port": Kind.OWN,
    "data-dir": Kind.OWN,
    "shared-store": Kind.OWN,
    "shared-store-lease": Kind.OWN,
    "shared-store-lock": Kind.OWN,
    "disk-free-limit": Kind.OWN,
    "memory-limit": Kind.OWN,
    "page-memory": Kind.OWN,
    "scrub-rate": Kind.OWN,
    "watchdog-interval": Kind.OWN,
    "backups-keep": Kind.OWN,
    "backups-keep-days": Kind.OWN,
    "backups-keep-size": Kind.OWN,
    "memberlog-segment-size": Kind.OWN,
    "memberlog-segment-time": Kind.OWN,
    "memberlog-compress": Kind.OWN,
    "memberlog-keep-days": Kind.OWN,
    "memberlog-keep-size": Kind.OWN,
    "memberlog-drop-unverified": Kind.OWN,
    "trace": Kind.OWN,
    "log-level": Kind.OWN,
    "log-file": Kind.OWN,
    "log-format": Kind.OWN,
    "tls-port": Kind.OWN,
    "tls-cert": Kind.OWN,
    "tls-key": Kind.OWN,
    "tls-ca": Kind.OWN,
    "tls-verify": Kind.OWN,
    "max-connections": Kind.OWN,
    "connection-limit-per-ip": Kind.OWN,
    "max-negotiating": Kind.OWN,
    "max-negotiate-time": Kind.OWN,
}


REPORTED: Mapping[str, str] = {name: DEFAULTS[name] for name in ("ha-cluster", "ha-promotion")}
"""Options that must be equal and have no check of their own, with their defaults."""


def settings_of(text: Mapping[str, str]) -> tuple[tuple[str, str, bool], ...]:
    """Return (name, value, whether it must be equal) of the options that members compare."""
    alike = sorted(name for name, kind in KINDS.items() if kind is Kind.ALIKE)
    return (
        *((name, text[name], False) for name in alike),
        *((name, text[name].lower(), True) for name in REPORTED),
    )


def unusual_settings(settings: tuple[tuple[str, str, bool], ...]) -> tuple[tuple[str, str], ...]:
    """Return those of `settings_of` that must be equal and are not at their defaults."""
    return tuple(
        (name, value) for name, value, must in settings if must and value != REPORTED.get(name, "")
    )
