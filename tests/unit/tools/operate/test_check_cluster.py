"""`qpidctl check_cluster`: shows the findings of members, each once, and names silent members."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator

import pytest

from broker.exit_codes import Exit
from broker.findings import rules
from tests.manual_pages import ROOT
from tests.manual_pages import text as manual
from tests.support.dashboard.canned_api import CannedApi, Json, Object, finding
from tests.unit.tools.operate.commands import Run
from tools.client.http_api import ApiError, NotRunning, parse_api
from tools.commands.qpid_cluster import qpid_cluster
from tools.oncall import answers
from tools.oncall.answers import Answers, asked
from tools.oncall.report import summary, text
from tools.operate.qpidctl import qpidctl

DOWN = finding("member-down", "member", ["c"], "c is down", since_ms=1_790_000_000_000)
UNTAKEN = finding("queue-untaken", "queue", ["/ q"], "nobody consumes: / q (7)", severity="notice")


def document(node: str, *found: Json, status: str = "ACTIVE", **more: Json) -> Object:
    """The findings of one member."""
    return {
        "cluster": "shop", "node": node, "status": status, "members": 3, "members_here": 2,
        "findings": [*found], "unknown": [], **more,
    }  # fmt: skip


def test_a_finding_of_several_members_is_shown_once_with_who_sees_it() -> None:
    lost = finding("no-quorum", "cluster", ["shop"], "b serves nobody", severity="critical")
    elsewhere: Object = {**UNTAKEN, "objects": ["/ other"]}  # the worst few may differ
    found = Answers(
        [document("a", DOWN, UNTAKEN), document("b", lost, DOWN, elsewhere, status="INQUORATE")], []
    )
    listed = [(one["name"], one["seen_by"]) for one in found.findings()]
    assert listed == [
        ("no-quorum", ["b"]), ("member-down", ["a", "b"]), ("queue-untaken", ["a", "b"])
    ]  # fmt: skip
    said = text(found, 100)
    assert "CRITICAL: b serves nobody (seen by b only)" in said
    assert "WARNING:  c is down, since 2026-09-21 14:13:20 UTC\n" in said
    assert summary(found) == (
        "shop is ACTIVE, 2 of 3 members here: 1 critical, 1 warning, 1 notice"
    )


def test_the_same_advice_about_several_members_is_given_once() -> None:
    late = [finding("member-late", "member", [one], f"{one} was late") for one in "ab"]
    said = text(Answers([document("a", *late)], []), 80)
    assert "WARNING:  a was late\nWARNING:  b was late\nso: " in said
    assert (said.count("so: "), said.count("do: ")) == (1, 1)


def test_what_one_member_cannot_know_another_may() -> None:
    blind = document("b", status="INQUORATE", unknown=["queues: b is INQUORATE"])
    assert Answers([blind], []).unknown() == ["queues: b is INQUORATE"]
    assert "UNKNOWN:  queues: b is INQUORATE" in text(Answers([blind], []), 80)
    assert Answers([blind, document("a")], []).unknown() == []


def test_a_healthy_cluster_gets_one_line() -> None:
    well = Answers([document("a", members_here=3)], [])
    assert text(well, 80) == "shop is ACTIVE, 3 of 3 members here: nothing needs looking after"
    assert not well.grave
    assert not Answers([document("a", UNTAKEN)], []).grave
    assert Answers([document("a", DOWN)], []).grave


@pytest.fixture
def hanging() -> Iterator[str]:
    """An address that accepts connections and answers nothing, like a stopped process."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_member_that_hangs_is_named_and_the_others_are_asked(
    run: Run, api: CannedApi, hanging: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "PATIENCE_S", 0.2)
    monkeypatch.setitem(api.answers, "qpid/findings", document("a"))
    ended = run(qpidctl, "--broker", f"{hanging},127.0.0.1:{api.port}", "check_cluster")
    assert f"SILENT:   cannot ask {hanging}: " in ended.out
    assert ended.out.endswith("2 of 3 members here: 1 did not answer\n")
    assert ended.code == Exit.UNAVAILABLE


def test_if_no_member_answers_each_is_named(hanging: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "PATIENCE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(NotRunning, match=closed):
        asked(parse_api(closed, None))
    with pytest.raises(ApiError, match=f"{closed}.*{hanging}") as refused:
        asked(parse_api(f"{closed},{hanging}", None))
    assert not isinstance(refused.value, NotRunning)  # a running member


def test_a_member_of_an_older_release_cannot_answer(run: Run, api: CannedApi) -> None:
    api.refusals["qpid/findings"] = (404, "Not Found")
    assert "has a release that finds nothing by itself" in run(qpidctl, "check_cluster").err


@pytest.mark.parametrize(
    "page", ["docs/ONCALL.md", "docs/operations", "README.md", "broker/findings/rules.py"]
)
def test_commands_suggested_to_an_operator_exist(page: str) -> None:
    place = ROOT / page
    told = manual() if place.is_dir() else place.read_text(encoding="utf-8")
    verbs = set(re.findall(r"qpidctl (?:-\S+ \S+ )*([a-z]+_[a-z_]+)", told))
    assert len(verbs) > 3
    assert verbs <= set(qpidctl.commands)
    known = {name for one in qpid_cluster.params for name in one.opts}
    assert {
        option
        for typed in re.findall(r"qpid-cluster((?: (?:--?[a-z-]+|\d+|[A-Z]+))+)", told)
        for option in re.findall(r"--[a-z-]+", typed)
    } <= known


def test_the_text_is_for_people_and_the_exit_code_fails_if_action_is_needed(
    run: Run, api: CannedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    ended = run(qpidctl, "check_cluster")
    assert ended.code == Exit.UNAVAILABLE  # the shovel of the canned answers
    lines = ended.out.splitlines()
    assert lines[0].startswith("WARNING:  shovel / away has failed: <img src=x")
    assert "see:      docs/ONCALL.md#shovel-failed" in lines
    assert max(map(len, lines)) <= 60
    assert lines[-1] == "shop is ACTIVE, 3 of 3 members here: 1 warning, 1 notice"
    monkeypatch.setitem(api.answers, "qpid/findings", document("a", UNTAKEN))
    assert run(qpidctl, "check_cluster").code == Exit.OK


def test_json_output_is_one_document(run: Run) -> None:
    found = json.loads(run(qpidctl, "check_cluster", "--json").out)
    assert found["status"] == "ACTIVE"
    assert found["findings"][0]["severity"] == rules.WARNING
    assert found["findings"][0]["see"] == "docs/ONCALL.md#shovel-failed"
    assert (found["unknown"], found["silent"]) == ([], [])


def test_a_name_cannot_control_the_terminal(
    run: Run, api: CannedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = {**UNTAKEN, "what": "\x1b[2J\nWARNING: all is lost"}
    monkeypatch.setitem(api.answers, "qpid/findings", document("a", hostile))
    out = run(qpidctl, "check_cluster").out
    assert "\x1b" not in out
    assert "\nWARNING: all" not in out
