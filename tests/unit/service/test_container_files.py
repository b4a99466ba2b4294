"""The container files of conf/: their options are valid, and their ports, paths and keys exist."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from broker.management.resources.health import CHECK
from broker.options.broker import BrokerOptions
from tools.cli.options import read_options

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "conf" / "container"
Document = dict[str, Any]


def entry_point() -> list[str]:
    text = (FOLDER / "Containerfile").read_text(encoding="utf-8")
    (line,) = re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)
    words: list[str] = json.loads(line)
    return words


def options(words: Iterable[str], environment: Mapping[str, str]) -> BrokerOptions:
    """The options a member with these arguments would run with."""
    typed = dict(word.removeprefix("--").split("=", 1) for word in words)
    return read_options(typed, environment, None)


def in_image() -> list[str]:
    program, *words = entry_point()
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert program in scripts
    return [f"{name}={value}" for name, value in zip(words[::2], words[1::2], strict=True)]


def test_the_image_exposes_the_ports_a_member_listens_on() -> None:
    text = (FOLDER / "Containerfile").read_text(encoding="utf-8")
    (ports,) = re.findall(r"^EXPOSE (.*)$", text, re.MULTILINE)
    found = options(in_image(), {})
    assert {"5672", "5671", "15672", "15692", "25672"} == set(ports.split())
    assert found.port == 5672
    assert f"15672/{CHECK.lstrip('/')}/is-in-service" in text.replace("/api/", "/")


def fits(members: list[BrokerOptions]) -> None:
    """All are members of one cluster, and each knows the others' addresses."""
    own = {str(member.cluster_bind) for member in members}
    assert len(own) == len(members)
    for member in members:
        assert {str(node) for node in member.cluster_nodes} == own
        assert member.cluster_size == len(members)


def test_the_compositions_three_members_fit_together() -> None:
    document: Document = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    members = []
    for name, service in document["services"].items():
        member = options([*in_image(), *service["command"]], service["environment"])
        assert member.cluster_bind.host == service["networks"]["ring"]["ipv4_address"]
        assert service["volumes"] == [f"{name}:/var/lib/qpidd"]
        assert name in document["volumes"]
        assert {port.rpartition(":")[2] for port in service["ports"]} == {"5672", "15672"}
        members.append(member)
    fits(members)


def test_the_stateful_set_is_three_members_of_one_cluster() -> None:
    documents: list[Document] = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))
    by_kind = {(one["kind"], one["metadata"]["name"]): one for one in documents}
    members = by_kind["StatefulSet", "qpidd"]["spec"]
    pod = members["template"]["spec"]
    (container,) = pod["containers"]
    found = []
    for number in range(members["replicas"]):
        words = [word.replace("$(NAME)", f"qpidd-{number}") for word in container["args"]]
        found.append(options([*in_image(), *words], {}))
    fits(found)
    ring = by_kind["Service", members["serviceName"]]["spec"]
    assert ring["clusterIP"] == "None"
    assert ring["publishNotReadyAddresses"] is True
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"amqp": 5672, "management": 15672, "metrics": 15692, "ring": 25672}
    probe = container["readinessProbe"]["httpGet"]
    assert probe == {"path": f"/api/{CHECK}/ready-to-serve-clients", "port": "management"}
    mounts = [*container["volumeMounts"], *pod["initContainers"][0]["volumeMounts"]]
    kept = {one["name"] for one in pod["volumes"]}
    kept |= {one["metadata"]["name"] for one in members["volumeClaimTemplates"]}
    assert {one["name"] for one in mounts} == kept
    assert pod["enableServiceLinks"] is False, "QPIDD_PORT would be taken as an option"
