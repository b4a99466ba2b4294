"""Keys and refusals with real brokers: who is admitted, what others are told, who continues."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from broker.exit_codes import Exit
from broker.machine.version import MACHINE_VERSION, MACHINE_VERSION_MIN
from broker.options.broker import broker_options
from tests.system.support.clusters import wait_until
from tests.system.support.undisturbed import Undisturbed
from tests.system.test_refusals import one_sentence
from tests.system.test_versions import send_until_counted
from tools.client.management import ManagementError
from tools.demo.local_cluster import HOST, ROOT, BrokerProcess, LocalCluster, command, free_ports
from vsync.primary.door import PrimaryDoor
from vsync.totem.config import RingConfig
from vsync.totem.membership.compatibility import settings_hash, settings_of
from vsync.types import Member
from vsync.wire.codec import Codec
from vsync.wire.messages import Datagram

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(180)]


def make_keys(folder: Path, *names: str, renew: bool = False) -> None:
    flags = ["--renew"] if renew else []
    subprocess.run(
        [*command("qpid-cluster-keys"), *flags, str(folder), *names],
        cwd=ROOT, check=True, capture_output=True, timeout=100,
    )  # fmt: skip


def secret(folder: Path, name: str, generation: str = "") -> Path:
    return folder / f"{name.replace(':', '_')}{generation}.key_secret"


def ring_of(member: BrokerProcess) -> str:
    return member.arguments[member.arguments.index("--cluster-bind") + 1]


def set_option(member: BrokerProcess, name: str, value: str) -> None:
    """Set an option for its next start; the last one on a command line counts."""
    member.arguments = (*member.arguments, f"--{name}", value)


def with_keys(cluster: LocalCluster, folder: Path) -> None:
    """Give each member its key and the common list."""
    make_keys(folder, *(ring_of(member) for member in cluster.members))
    for member in cluster.members:
        set_option(member, "cluster-key", str(secret(folder, ring_of(member))))
        set_option(member, "cluster-allow", str(folder / "public"))


def newcomer(nodes: str, *arguments: str, name: str = "test") -> tuple[int, str]:
    """Start a broker that should be refused; return its exit code and stderr."""
    port, ring = free_ports(2)
    ended = subprocess.run(
        [
            *command("qpidd"), "--log-level", "error", "--cluster-name", name,
            "--cluster-size", "3", "--cluster-bind", f"{HOST}:{ring}",
            "--cluster-nodes", nodes, "--port", str(port), *arguments,
            *(() if "--data-dir" in arguments else ("--no-data-dir",)),
        ],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=99, check=False,
    )  # fmt: skip
    return ended.returncode, ended.stderr


@pytest.mark.slow
def test_keys_can_be_changed_in_a_serving_cluster(tmp_path: Path) -> None:
    """The procedure of docs/operations/security.md step by step; then a newcomer without a key."""
    keys = tmp_path / "keys"
    with LocalCluster(tmp_path, 3, "test") as cluster:
        with_keys(cluster, keys)
        cluster.start()
        last = cluster[2]
        name = ring_of(last)

        make_keys(keys, name, renew=True)
        assert last.terminate() == Exit.OK
        set_option(last, "cluster-key", str(secret(keys, name, ".2")))
        last.start()
        cluster.wait_active()
        (keys / "public" / f"{name.replace(':', '_')}.key").unlink()

        last.kill()
        last.start()
        cluster.wait_active()
        assert not any("WARNING" in line and "allow" in line for line in lines(cluster[0]))

        with Undisturbed(cluster):
            for arguments in ((), ("--cluster-username", "u", "--cluster-password", "p")):
                code, said = newcomer(ring_of(cluster[0]), *arguments)
                assert code == Exit.NOT_ALLOWED, said
                assert "wants mechanism CURVE" in said


def lines(member: BrokerProcess) -> list[str]:
    return member.log_path.read_text().splitlines()


def test_a_foreign_newcomer_says_why_and_no_other_member_notices(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """G15, with real processes."""
    nodes = ring_of(cluster[0])
    with Undisturbed(cluster):
        code, said = newcomer(nodes, name="tset")
        assert code == Exit.PROTOCOL, said
        assert "of cluster 'test'" in said
        assert "for cluster 'tset'" in said

    port, ring = free_ports(2)
    make_keys(tmp_path, f"{HOST}:{ring}", nodes)
    with Undisturbed(cluster):
        code, said = newcomer(
            nodes, "--cluster-key", str(secret(tmp_path, f"{HOST}:{ring}")),
            "--cluster-allow", str(tmp_path / "public"), "--cluster-bind", f"{HOST}:{ring}",
            "--port", str(port),
        )  # fmt: skip
        assert code == Exit.NOT_ALLOWED, said
        assert "wants mechanism ANONYMOUS, and this one uses CURVE" in said

    # A valid frame with the order to stop, from a sender outside the view.
    stranger = Member(f"{HOST}:1", 1, f"{HOST}:1")
    config = RingConfig(payload_version=MACHINE_VERSION, payload_version_min=MACHINE_VERSION_MIN)
    options = broker_options(
        {"cluster-name": "test", "cluster-size": "3", "cluster-nodes": nodes, "data-dir": "none"}
    )
    door = PrimaryDoor(
        stranger, options.cluster_size, options.requested, transient=False, barred=lambda _: None
    )
    codec = Codec(stranger, "test", 32_768, settings_hash(settings_of(config), door.digest))
    with Undisturbed(cluster):
        frame = codec.encode(Datagram(b"S"))
        send_until_counted(cluster[0], [frame] * 20, "member.datagrams_of_strangers")


def test_bad_keys_are_refused_before_anything_is_changed(tmp_path: Path) -> None:
    make_keys(tmp_path, f"{HOST}:7001")
    path = secret(tmp_path, f"{HOST}:7001")
    path.chmod(0o644)
    data = tmp_path / "data"
    code, said = newcomer(
        f"{HOST}:7002", "--cluster-bind", f"{HOST}:7001", "--data-dir", str(data),
        "--cluster-key", str(path), "--cluster-allow", str(tmp_path / "public"),
    )  # fmt: skip
    assert code == Exit.CONFIG
    assert one_sentence(said), said
    assert f"chmod 600 {path}" in said
    assert not data.exists()


@pytest.mark.slow
def test_a_member_whose_keys_are_revoked_is_alone(tmp_path: Path) -> None:
    """G15: the others continue without it; it serves nobody."""
    keys = tmp_path / "keys"
    with LocalCluster(tmp_path, 3, "test") as cluster:
        with_keys(cluster, keys)
        last = cluster[2]
        own = tmp_path / "own"
        own.mkdir()
        for path in (keys / "public").iterdir():
            (own / path.name).write_text(path.read_text())
        set_option(last, "cluster-allow", str(own))
        cluster.start()
        (keys / "public" / f"{ring_of(last).replace(':', '_')}.key").unlink()
        cluster_of_two = cluster.members[:2]

        def alone() -> bool:
            try:
                return last.status().status == "INQUORATE"
            except ManagementError:
                return False

        wait_until(alone, 20, "the member without keys to be alone")
        wait_until(
            lambda: sum(one.state == "ACTIVE" for one in cluster_of_two[0].status().members) == 2,
            20, "the others to continue",
        )  # fmt: skip
