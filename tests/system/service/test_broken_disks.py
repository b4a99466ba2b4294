"""A member whose file system becomes read-only, or vanishes: its own exit code, and a way back."""

from __future__ import annotations

from pathlib import Path

import pika
import pytest

from broker.exit_codes import Exit
from tests.system.support.clusters import admitted, running_cluster, wait_until
from tests.system.support.small_disks import mounted
from tests.system.test_cluster_faults import channel_of

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.mark.parametrize("gone", [False, True])
def test_it_leaves_with_its_own_code_and_the_others_continue(tmp_path: Path, *, gone: bool) -> None:
    """G9.  Confirmed messages are there when the disk is repaired."""
    with mounted([tmp_path / "broker-3"]) as (disk,), running_cluster(tmp_path) as cluster:
        sick = cluster[2]
        channel = admitted(lambda: channel_of(cluster[0]))
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"before", PERSISTENT)
        if gone:
            disk.vanish()
        else:
            disk.become_read_only()
        wait_until(lambda: not sick.alive, 60, "the member to leave")
        assert sick.exit_code == Exit.IO_ERROR
        said = sick.log_tail(60)
        assert str(sick.data_dir) in said
        assert ("(ENOENT)" if gone else "(EROFS)") in said
        assert ("mount or repair" if gone else "repair or mount") in said
        channel.basic_publish("", "q", b"meanwhile", PERSISTENT)
        cluster.wait_active(cluster.members[:2])

        if not gone:  # over an empty mount point it would be refilled
            sick.start()
            wait_until(lambda: not sick.alive, 30, "the refusal to start")
            assert sick.exit_code == Exit.IO_ERROR
            assert "repair or mount that file system" in sick.log_tail(3)
        disk.mend()
        sick.start()
        cluster.wait_active()
        there = admitted(lambda: channel_of(sick))
        assert there.queue_declare("q", passive=True).method.message_count == 2
        for one in (channel, there):
            one.connection.close()
