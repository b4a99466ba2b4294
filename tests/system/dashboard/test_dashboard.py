"""The dashboard in a real browser: click paths, keys, hostile names, needs of screen readers.

The pages run in a headless Chromium against prepared replies; every request that changes something
is asserted, and the console must stay empty.  Skipped, with the reason, without a Chromium: on
Debian, `apt-get install chromium-headless-shell`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from broker.management.server import STATIC
from tests.support.dashboard import chromium
from tests.support.dashboard.canned_api import (
    CONNECTION,
    HOSTILE,
    CannedApi,
    Object,
    finding,
    findings_of,
    member,
    queue,
)
from tests.support.dashboard.chromium import Browser, browser, executable

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(
        executable() is None, reason="no Chromium: apt-get install chromium-headless-shell"
    ),
]

PAGES = (
    "overview", "members", "queues", "queue/%2F/orders", "exchanges", "exchange/%2F/amq.topic",
    "connections", "channels", "policies", "users", "vhosts", "links", "health",
)  # fmt: skip
HOSTILE_PATH = quote(HOSTILE, safe="")

FAULTS = Path(chromium.__file__).with_name("page_faults.js").read_text(encoding="utf-8")
"""The violations on the page as it is of those WCAG rules that a program can check."""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests of this file."""
    with browser(tmp_path_factory.mktemp("chromium") / "profile") as found:
        yield found


@pytest.fixture
def api() -> Iterator[CannedApi]:
    """Prepared replies, and a record of the changes."""
    canned = CannedApi()
    yield canned
    canned.close()


@pytest.fixture
def page(started: Browser, api: CannedApi) -> Iterator[Browser]:
    """The page, logged in; each test has another port and so another origin, and no shared
    login."""
    started.complaints.clear()
    started.screen()
    started.open(f"{api.url}/")
    log_in(started)
    started.wait_text("Messages in queues")
    yield started
    started.open("about:blank")  # before its replies are gone, which it would report later


def log_in(page: Browser, password: str = "pw") -> None:
    """Fill in the form and submit it by keyboard."""
    page.wait("document.querySelector('form.login')")
    page.fill("User", "ada")
    page.fill("Password", password)
    page.press("Enter")


def go(page: Browser, place: str) -> None:
    """Go to a page by its address and wait until it is filled."""
    page.evaluate(f"location.hash = '#/{place}'")
    page.wait(f"decodeURIComponent(location.hash) === decodeURIComponent('#/{place}')")
    page.wait("!document.querySelector('.list') || document.querySelector('.counted').textContent")


def test_every_page_is_clean_in_light_and_dark_and_on_a_phone(
    page: Browser, api: CannedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = {"messages": 1300, "messages_ready": 1230, "messages_unacknowledged": 70}
    monkeypatch.setitem(api.answers["overview"], "queue_totals", long)  # type: ignore[arg-type]
    page.wait_text("1,300")
    faults: list[str] = []
    for width, height, dark in ((1280, 900, False), (360, 780, True)):
        page.screen(width, height, dark=dark)
        for place in PAGES:
            go(page, place)
            page.evaluate(
                "for (const fold of document.querySelectorAll('details')) fold.open = true"
            )
            faults += [f"{place} at {width}: {one}" for one in page.evaluate(FAULTS)]
    assert faults == []
    assert page.complaints == []


def test_the_login_refuses_and_a_logout_forgets(started: Browser, api: CannedApi) -> None:
    started.screen()
    started.open(f"{api.url}/")
    log_in(started, "wrong")
    started.wait_text("does not let this user in")
    assert started.evaluate("sessionStorage.length") == 0
    assert started.evaluate(FAULTS) == []
    log_in(started)
    started.wait_text("Messages in queues")
    started.open(f"{api.url}/#/queues")
    started.evaluate("window.before = true; location.reload()")
    started.wait("!window.before")
    started.wait_text("orders")  # the login survives a reload in this tab
    started.click("button", "Log out")
    started.wait("document.querySelector('form.login')")
    assert started.evaluate("sessionStorage.length + localStorage.length") == 0
    assert not started.evaluate("document.cookie")


def test_a_user_that_may_see_less_stays_logged_in(started: Browser, api: CannedApi) -> None:
    api.answers["whoami"] = {"name": "ada", "tags": ["management"]}
    for path in ("qpid/cluster", "qpid/findings", "nodes"):
        api.refusals[path] = (401, "Not monitoring user")
    started.complaints.clear()
    started.screen()
    started.open(f"{api.url}/")
    log_in(started)
    started.wait_text("Messages in queues")
    started.wait("!document.body.innerText.includes('Ring and quorum')")
    pages = started.evaluate("[...document.querySelectorAll('nav a')].map((one) => one.innerText)")
    assert pages == [
        "Overview", "Queues", "Exchanges", "Connections", "Channels", "Policies", "Virtual hosts",
        "Alarms",
    ]  # fmt: skip
    go(started, "queue/%2F/orders")
    refused = "configure access to queue 'orders' in vhost '/' refused for user 'ada'"
    api.refusals["queues/%2F/orders"] = (401, refused)
    started.click("button", "Delete")
    started.click("dialog button", "Delete")
    started.wait_text(refused)
    started.evaluate("location.hash = '#/members'")
    started.wait_text("Not monitoring user")
    assert not started.evaluate("document.querySelector('form.login')")


def test_a_login_that_holds_no_more_leads_to_the_form(page: Browser, api: CannedApi) -> None:
    api.refusals["overview"] = (401, "Login failed")
    page.wait_text("You were logged out")
    assert page.evaluate("sessionStorage.length") == 0


def test_the_heading_shows_a_state_that_is_no_finding(page: Browser, api: CannedApi) -> None:
    cluster = api.answers["qpid/cluster"]
    assert isinstance(cluster, dict)
    api.answers["qpid/findings"] = findings_of()
    page.wait("document.querySelector('.health').innerText.includes('ACTIVE')")
    api.answers["qpid/cluster"] = {**cluster, "status": "JOINING"}
    page.wait("document.querySelector('.health').innerText.includes('JOINING')")


def test_hostile_names_are_text(page: Browser, api: CannedApi) -> None:
    for place in ("queues", "exchanges", "connections", "users"):
        go(page, place)
        page.wait_text("onerror=alert(1)")
    go(page, "queues")
    page.click("a", "onerror=alert(1)")
    page.wait("document.querySelector('h1').textContent.startsWith('Queue <img')")
    page.wait("[...document.querySelectorAll('dd')].some((one) => one.textContent === '3')")
    page.click("button", "Get")
    page.wait_text("<b>one</b>")
    assert page.evaluate("document.querySelectorAll('img[src=x], pre b').length") == 0
    assert page.dialogs == 0
    assert api.changes[-1][:2] == ("POST", f"queues/%2F/{HOSTILE_PATH}/get")
    assert page.complaints == []


def test_a_name_that_browsers_take_for_a_path_is_not_requested(
    page: Browser, api: CannedApi
) -> None:
    page.evaluate("location.hash = '#/queue/%2F/..'")
    page.wait_text('a browser cannot address the name ".."')
    assert api.changes == []


def test_a_stream_shows_its_offsets_and_readers(page: Browser, api: CannedApi) -> None:
    """And shows no action that a stream refuses."""
    go(page, "queue/%2F/log")
    for shown in ("1,002 to 1,009", "7 messages", "7 d long", "7, filtered", "1,003"):
        page.wait_text(shown)
    for hidden in ("Get messages", "Move messages", "Purge"):
        shown = f"one.textContent === '{hidden}' && one.offsetParent !== null"
        page.wait(f"![...document.querySelectorAll('h2,summary,button')].some((one) => {shown})")
    assert api.changes == []
    assert page.complaints == []


def test_links_of_each_kind_are_listed_and_a_replica_is_stopped(
    page: Browser, api: CannedApi
) -> None:
    go(page, "links")
    for shown in ("amqps://far.example orders", "amqp://old.example orders", "5 to come", "level"):
        page.wait_text(shown)
    page.click("tr[data-id='//spare'] button", "Stop")
    page.click("dialog button", "Stop")
    page.wait_text("spare is a queue of its own.")
    assert api.changes == [("DELETE", "parameters/queue-replica/%2F/spare", None)]
    assert page.complaints == []


LINES = """[...document.querySelectorAll('figure.chart')].map((one) => [
  one.querySelector('svg[role=img]').getAttribute('aria-label'),
  one.querySelectorAll('svg[role=img] text')[3].textContent,
  [...one.querySelectorAll('polyline')].map((line) => line.getAttribute('points').split(' ').map(
    (point) => point.split(',').map(Number)))])"""


def test_a_queues_charts_begin_with_the_members_samples(page: Browser, api: CannedApi) -> None:
    go(page, "queue/%2F/orders")
    page.wait("document.querySelectorAll('polyline')[0].getAttribute('points')")
    asked = [query for path, query in api.queries if path == "queues/%2F/orders"]
    assert asked[0] == {
        "lengths_age": "60", "lengths_incr": "2", "msg_rates_age": "60", "msg_rates_incr": "2",
    }  # fmt: skip
    depth, flow = page.evaluate(LINES)
    assert depth[0] == "Messages, now: ready 120, unacknowledged 7"
    assert flow[0] == "Rates, now: published 40/s, delivered 36/s, acknowledged 35.3/s"
    assert depth[1] == flow[1] == "60 s ago"
    (ready, _), (published, *_) = depth[2], flow[2]
    assert len(ready) == 4
    assert len(published) == 3
    (oldest, floor), first, second, (newest, top) = ready
    assert oldest < first[0] < second[0] < newest
    assert top < first[1] == second[1] < floor
    assert published[1][1] > published[2][1] > published[0][1]  # 50, 0 and 40 a second


def test_messages_are_published_viewed_moved_and_purged(page: Browser, api: CannedApi) -> None:
    go(page, "queue/%2F/orders")
    page.click("summary", "Publish a message")
    page.fill("Payload", "héllo")
    page.fill("Properties", '{"headers": {"k": 1}}')
    page.click("button", "Publish")
    page.wait_text("The message is in the queue.")
    page.click("summary", "Move messages")
    page.fill("To queue", "bulk.001")
    page.fill("Messages at most", "2")
    page.click("button", "Move")
    page.wait_text("2 messages moved to bulk.001")
    page.click("button", "Purge")
    page.wait("document.querySelector('dialog')?.open")
    page.press("Enter")  # the focus is on Cancel
    page.wait("!document.querySelector('dialog')")
    page.click("button", "Purge")
    page.click("dialog button", "Purge")
    page.wait_text("Queue orders is purged.")
    page.click("button", "Delete")
    page.click("dialog button", "Delete")
    page.wait("location.hash === '#/queues'")
    properties = {"delivery_mode": 2, "headers": {"k": 1}}
    assert api.changes == [
        ("POST", "exchanges/%2F/amq.default/publish",
         {"routing_key": "orders", "payload": "héllo", "payload_encoding": "string",
          "properties": properties}),
        ("POST", "queues/%2F/orders/move", {"to": "bulk.001", "count": 2}),
        ("DELETE", "queues/%2F/orders/contents", None),
        ("DELETE", "queues/%2F/orders", None),
    ]  # fmt: skip
    assert page.complaints == []


def test_queues_and_exchanges_are_declared_bound_and_unbound(page: Browser, api: CannedApi) -> None:
    go(page, "queues")
    page.click("summary", "Declare a queue")
    page.fill("Name", "new/one")
    page.fill("Arguments", '{"x-max-length": 5}')
    page.click("button", "Declare")
    page.wait_text("Queue new/one is declared.")
    go(page, "queue/%2F/orders")
    page.click("summary", "Add a binding")
    page.fill("From exchange", "amq.topic")
    page.fill("Routing key", "a.#")
    page.click("button", "Bind")
    page.wait_text("The binding is there.")
    page.click("button", "Unbind")
    page.click("dialog button", "Unbind")
    page.wait_text("The binding is removed.")
    declared = {"durable": True, "auto_delete": False, "arguments": {"x-max-length": 5}}
    assert api.changes == [
        ("PUT", "queues/%2F/new%2Fone", declared),
        ("POST", "bindings/%2F/e/amq.topic/q/orders", {"routing_key": "a.#", "arguments": {}}),
        ("DELETE", "bindings/%2F/e/amq.topic/q/orders/o.%2523", None),
    ]


def test_users_policies_and_virtual_hosts_are_set(page: Browser, api: CannedApi) -> None:
    go(page, "users")
    page.click("summary", "Add or change a user")
    page.fill("Name", "bob")
    page.fill("Password", "pw2")
    page.fill("Tags", "monitoring, management")
    page.click("button", "Save")
    page.wait_text("User bob is saved.")
    go(page, "policies")
    page.click("summary", "Set a policy")
    page.fill("Name", "p")
    page.fill("Pattern", "^a")
    page.fill("Definition", '{"max-length": 9}')
    page.click("button", "Set")
    page.wait_text("Policy p is set.")
    go(page, "vhosts")
    page.click("summary", "Add a virtual host")
    page.fill("Name", "shop")
    page.fill("Description", "of the shop")
    page.evaluate("document.querySelector('[name=default_queue_type]').value = 'quorum'")
    page.click("button", "Add")
    page.wait_text("Virtual host shop is there.")
    go(page, "connections")
    page.click("button", "Close")
    page.click("dialog button", "Close")
    page.wait_text("The connection is closed.")
    go(page, "members")
    page.click("tr[data-id=b] button", "Force out")
    page.click("dialog button", "Force out")
    page.wait_text("b was told to leave.")
    assert api.changes == [
        ("PUT", "users/bob", {"password": "pw2", "tags": "monitoring,management"}),
        ("PUT", "policies/%2F/p",
         {"pattern": "^a", "definition": {"max-length": 9}, "priority": 0, "apply-to": "all"}),
        ("PUT", "vhosts/shop",
         {"description": "of the shop", "default_queue_type": "quorum"}),
        ("DELETE", f"connections/{quote(CONNECTION, safe='')}", None),
        ("DELETE", "qpid/members/b", None),
    ]  # fmt: skip
    assert page.complaints == []


def test_a_refusal_is_shown_and_the_input_is_kept(page: Browser, api: CannedApi) -> None:
    go(page, "queues")
    api.refusals["queues/%2F/orders"] = (400, "inequivalent arg 'durable' for queue 'orders'")
    page.click("summary", "Declare a queue")
    page.fill("Name", "orders")
    page.fill("Arguments", "not json")
    page.click("button", "Declare")
    page.wait_text("this is not JSON: not json")
    page.fill("Arguments", "")
    page.press("Backspace")
    page.click("button", "Declare")
    page.wait_text("inequivalent arg 'durable' for queue 'orders'")
    assert page.evaluate("document.querySelector('details input[name=name]').value") == "orders"


def test_the_keyboard_reaches_everything_in_order(page: Browser) -> None:
    go(page, "queues")
    page.evaluate("document.activeElement.blur(); window.getSelection().removeAllRanges()")
    page.evaluate("document.querySelector('.skip').focus()")
    page.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.press("Tab")
    assert page.evaluate("document.activeElement.type") == "search"
    page.type("bulk.11")
    page.wait_text("10 of 122")
    page.press("Tab", "Tab", "Tab")  # the regular expression, the table that scrolls, its heads
    assert page.evaluate("document.activeElement.textContent") == "Name"
    page.press("Enter")
    page.wait("document.querySelector('th[aria-sort=ascending]')")
    assert page.evaluate("document.activeElement.textContent.startsWith('Name')")
    order = page.evaluate("""[...document.querySelectorAll('a[href], button, input, summary')]
        .filter((one) => one.checkVisibility() && one.tabIndex >= 0).map((one) => {
            const box = one.closest('tr, nav, .bar, .filter, summary, .pages, .skip')
                .getBoundingClientRect();
            return Math.round(box.top);
        }).slice(1)""")
    assert order == sorted(order), "the keyboard's order is not the visual one"


def test_a_refreshed_page_keeps_the_focus(page: Browser) -> None:
    go(page, "queues")
    page.wait("document.querySelector('tr[data-id=\"//orders\"] a')")
    page.evaluate("document.querySelector('tr[data-id=\"//orders\"] a').focus()")
    page.evaluate("document.querySelector('tr[data-id=\"//orders\"]').dataset.old = 'yes'")
    page.wait("!document.querySelector('tr[data-old]')")
    assert page.evaluate("document.activeElement.textContent") == "orders"


def test_a_list_of_many_is_paged(page: Browser) -> None:
    go(page, "queues")
    page.wait_text("page 1 of 3")
    page.click("button", "Next")
    page.wait_text("page 2 of 3")
    page.wait_text("bulk.048")
    assert page.evaluate("document.querySelectorAll('tbody tr').length") == 50


def test_alarms_and_a_lost_quorum_are_shown_prominently(page: Browser, api: CannedApi) -> None:
    cluster = api.answers["qpid/cluster"]
    assert isinstance(cluster, dict)
    quorum = {"expected_votes": 3, "total_votes": 1, "quorum": 2, "quorate": False}
    api.answers["qpid/cluster"] = {
        **cluster, "status": "INQUORATE", "reason": "1 of 3 votes", "quorum": {**quorum},
        "alarms": ["b: disk_free 12 MB is below 50 MB"],
    }  # fmt: skip
    api.answers["qpid/findings"] = findings_of(
        finding(
            "no-quorum", "cluster", ["shop"], "a serves nobody: 1 of 3 votes", severity="critical"
        ),
        unknown=("queues: a is INQUORATE",),
    )
    page.wait_text("not quorate")
    page.wait_text("INQUORATE")
    page.wait_text("no quorum")
    page.wait_text("a serves nobody: 1 of 3 votes")
    page.wait_text("queues: a is INQUORATE")
    go(page, "health")
    page.wait_text("b: disk_free 12 MB is below 50 MB")


OVERLAPS = """(() => {
  const boxes = [...document.querySelectorAll('svg.ring text')].map((one) => [one.textContent, one.getBoundingClientRect()]);
  const ring = document.querySelector('svg.ring').getBoundingClientRect();
  const out = boxes.filter(([, a]) => a.left < ring.left - 1 || a.right > ring.right + 1).map(([name]) => name);
  return out.concat(boxes.flatMap(([name, a], i) => boxes.slice(i + 1).filter(([, b]) =>
    a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3).map(([other]) => `${name} / ${other}`)));
})()"""  # noqa: E501


def test_two_dead_members_of_nine_are_shown_and_explained(page: Browser, api: CannedApi) -> None:
    cluster = api.answers["qpid/cluster"]
    assert isinstance(cluster, dict)
    names = [f"10.0.0.{number}:25672" for number in range(1, 10)]
    api.answers["qpid/cluster"] = {
        **cluster,
        "members": [
            member(name, state="DOWN" if name in (names[2], names[7]) else "ACTIVE")
            for name in names
        ],
        "quorum": {"expected_votes": 9, "total_votes": 7, "quorum": 5, "quorate": True},
    }
    api.answers["qpid/findings"] = findings_of(
        *(finding("member-down", "member", [name], f"{name} is down", follows="2 more may go.")
          for name in (names[2], names[7]))
    )  # fmt: skip
    page.wait_text("member down (2)")
    page.wait_text("10.0.0.3:25672 is down")
    page.wait_text("2 more may go.")
    go(page, "members")
    page.wait_text("10.0.0.8:25672 is down")
    assert page.evaluate("document.querySelectorAll('.needs p').length") == 1  # the same advice
    for width in (1280, 360):
        page.screen(width, 900)
        assert page.evaluate(OVERLAPS) == []
        assert page.evaluate(FAULTS) == []
    api.answers["qpid/cluster"] = {**cluster, "members": [member("a"), member("b")]}
    api.answers["qpid/findings"] = findings_of()
    page.wait("document.querySelector('.needs').offsetParent === null")
    page.screen()


def test_the_ring_is_drawn_and_its_views_are_listed(page: Browser, api: CannedApi) -> None:
    """Both follow the member's reports, without a reload."""
    go(page, "members")
    page.wait_text("ring a.8: a, b, c")
    page.wait_text("primary view of epoch 3")
    page.wait("document.querySelectorAll('svg.ring g.member').length === 3")
    said = "document.querySelector('svg.ring').getAttribute('aria-label')"
    assert "a active, votes; b active, votes; c " in str(page.evaluate(said))
    cluster = api.answers["qpid/cluster"]
    assert isinstance(cluster, dict)
    members, views = cluster["members"], cluster["views"]
    assert isinstance(members, list)
    assert isinstance(views, list)
    alone: Object = {"at_ms": 1_790_000_090_000, "ring": "a.12", "epoch": 3, "primary": False,
             "members": ["a"], "left": [], "reason": "1 of 3 votes"}  # fmt: skip
    quorum = {"expected_votes": 3, "total_votes": 1, "quorum": 2, "quorate": False}
    api.answers["qpid/cluster"] = {
        **cluster, "members": members[:1], "views": [*views, alone], "quorum": {**quorum},
    }  # fmt: skip
    page.wait_text("ring a.12: a")
    page.wait_text("not primary; 1 of 3 votes")
    page.wait("document.querySelectorAll('svg.ring g.member').length === 1")
    assert "1 of 3 votes, not quorate" in str(page.evaluate(said))
    assert page.complaints == []


def test_the_overviews_charts_begin_with_the_members_samples(page: Browser, api: CannedApi) -> None:
    """An operator comes because of what happened a moment ago."""
    page.wait("document.querySelectorAll('polyline')[0].getAttribute('points')")
    first, *others = [query for path, query in api.queries if path == "overview"]
    assert first["lengths_age"] == first["msg_rates_age"] == "60"
    (oldest, floor), second, (newest, top), *_ = page.evaluate(LINES)[0][2][0]
    assert oldest < second[0] < newest
    assert top < second[1] < floor
    assert not any("lengths_age" in query for query in others)


def test_charts_continue_without_a_reload(page: Browser) -> None:
    go(page, "overview")
    points = "[...document.querySelectorAll('polyline')].map((one) => one.getAttribute('points'))"
    page.wait(f"{points}.some((one) => one.split(' ').length > 1)")
    page.evaluate(f"window.before = {points}.join()")
    page.wait(f"{points}.join() !== window.before")


def test_a_name_cannot_turn_the_text_around_it(page: Browser, api: CannedApi) -> None:
    name = "a\u202egnp.exe\x07"
    api.answers["queues"] = [queue(name, 2)]
    api.answers["qpid/findings"] = findings_of(
        finding("queue-untaken", "queue", [name], f"messages wait in {name} (2)")
    )
    page.wait_text("messages wait in a\\u202egnp.exe\\u0007 (2)")
    go(page, "queues")
    page.wait_text("a\\u202egnp.exe\\u0007")
    assert page.evaluate("document.querySelector('tbody a').href").endswith(quote(name, safe=""))


def test_a_member_without_its_quorum_is_not_shown_as_joining(page: Browser, api: CannedApi) -> None:
    cluster = api.answers["qpid/cluster"]
    assert isinstance(cluster, dict)
    quorum = {"expected_votes": 3, "total_votes": 0, "quorum": 2, "quorate": False}
    api.answers["qpid/cluster"] = {
        **cluster, "status": "INQUORATE", "quorum": {**quorum},
        "members": [member("a", state="JOINING"), member("b", state="DOWN", position=0)],
    }  # fmt: skip
    go(page, "members")
    page.wait_text("No join is under way.")
    positions = "[...document.querySelectorAll('tbody tr')].map((one) => one.cells[3].innerText)"
    page.wait(f"{positions}.join() === '4,711,\\u2013'")


def test_the_progress_of_a_join_is_shown(page: Browser, api: CannedApi) -> None:
    go(page, "members")
    page.wait_text("c has received 41.5 % of the state")
    cluster = api.answers["qpid/cluster"]
    assert isinstance(cluster, dict)
    members = cluster["members"]
    assert isinstance(members, list)
    arrived = member("c")
    api.answers["qpid/cluster"] = {**cluster, "members": [*members[:2], arrived]}
    page.wait_text("No join is under way.")


def test_a_member_that_does_not_answer_is_reported(started: Browser) -> None:
    api = CannedApi()
    started.screen()
    started.open(f"{api.url}/")
    log_in(started)
    started.wait_text("Messages in queues")
    api.close()
    started.wait_text("no answer from this member")
    assert started.evaluate("document.querySelectorAll('polyline').length") > 0


def test_the_page_loads_nothing_from_other_sites() -> None:
    files: list[Path] = sorted(STATIC.rglob("*.*"))
    assert len(files) > 15
    for file in files:
        text = file.read_text(encoding="utf-8")
        foreign = text.replace("http://www.w3.org/2000/svg", "")
        assert "://" not in foreign, file
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert way not in text, f"{file} sets markup by {way}"
