"""The main job on real input, step by step: `make demo`, or `python -m tools.demo`.

Three brokers with stores. The text of the interpreter's own standard library goes in at the first
and comes out at the third; the first is killed in mid-stream and comes back; then the whole cluster
stops and starts again. Every step checks itself, and the first failure ends the demo with a
non-zero code. Everything runs as an operator would run it: the commands, in processes.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from broker.exit_codes import Exit
from tools.cli.failures import ToolError
from tools.cli.options import run_command
from tools.cli.signals import ended_by
from tools.demo.local_cluster import (
    ROOT,
    BrokerProcess,
    ClusterTrouble,
    LocalCluster,
    command,
)
from tools.demo.stream import Arrivals, Mixed, write_input

QUEUE = "library"
OWN_FILES = re.compile(
    r"clients|(broker-\d)(\.log)?|(input|kept)\.txt|(output|leftover|kept)\.jsonl|spout\.json"
)
"""Names in the folder of a demo; a folder with others is somebody else's."""
WINDOW = 1000
KEPT_LINES = 2_000
"""How many messages stay in the queue during the restart of the whole cluster."""
KILL_AT, RESTART_AT = 0.30, 0.50
"""Shares of the stream that have arrived when broker 1 dies, and when it is started again."""
SHOWN_SECONDS = 10.0
"""The interval between reports of the stream's progress."""
POLL_SECONDS = 0.1
STILL_POLL_SECONDS = 1.0
"""Time between questions why nothing came; a slow machine should not spend more on them."""
TOOL_SECONDS = 120.0
VERIFY_SECONDS = 600.0
STILL_SECONDS = 90.0
"""How long nothing may change: a busy machine is slow, but does not stand still."""


class DemoFailed(ToolError):
    """The check of a step failed."""


class Output:
    """Prints events with their times. Knows nothing of the steps."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._step = 0

    def step(self, text: str) -> None:
        """Announce the next step."""
        self._step += 1
        print(f"\n[{self.seconds():5.1f} s] {self._step}. {text}", flush=True)

    def fact(self, text: str) -> None:
        """Print a checked fact."""
        print("\n".join(f"            {line}" for line in text.splitlines()), flush=True)

    def seconds(self) -> float:
        """Since the demo began."""
        return time.monotonic() - self._began


class Demo:
    """The steps, in order. Each method is one chapter and prepares the cluster for the next."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.count = count
        self.histories = folder / "clients"
        self.output = Output()
        self.cluster = LocalCluster(folder, 3, "demo")
        self._clients: list[subprocess.Popen[bytes]] = []

    def run(self) -> None:
        """Run all chapters; whatever happens, no process is left behind."""
        try:
            source, digest = self.prepare()
            self.start_cluster()
            self.stream(source, digest)
            kept, kept_digest = self.leave_some()
            self.restart_all()
            self.find_them_again(kept, kept_digest)
            self.verify()
        finally:
            for client in self._clients:
                if client.poll() is None:
                    client.kill()
                    client.wait()
            self.cluster.close()

    def prepare(self) -> tuple[Path, str]:
        """Make the input, from the library that every machine with Python has."""
        self.output.step(f"Input: {self.count:,} lines of this interpreter's standard library")
        source = self.folder / "input.txt"
        digest = write_input(source, self.count)
        self.output.fact(f"{source.stat().st_size:,} bytes, SHA-256 {digest}")
        return source, digest

    def start_cluster(self) -> None:
        """Start three members that wait for each other."""
        self.output.step("Three brokers, each with a store of its own, form a cluster")
        self.cluster.launch()
        self.serving()
        self.show(self.cluster[0], 3)

    def stream(self, source: Path, digest: str) -> None:
        """In at broker 1, out at broker 3, and broker 1 dies on the way."""
        self.output.step("spout publishes to broker 1, drain consumes with acks from broker 3")
        output, report = self.folder / "output.jsonl", self.folder / "spout.json"
        drain = self.start_tool(
            "drain", "--broker", self.cluster.brokers(2), "--queue", QUEUE, "--create",
            "--format", "json", "--output", str(output), "--count", str(self.count), "--unique",
            "--quiet", "--history", str(self.histories),
        )  # fmt: skip
        spout = self.start_tool(
            "spout", "--broker", self.cluster.brokers(0), "--queue", QUEUE, "--file", str(source),
            "--sequence", "--once", "--durable", "--window", str(WINDOW), "--json", "--quiet",
            "--history", str(self.histories), stdout=report,
        )  # fmt: skip
        arrivals = Arrivals(output)
        self.until(arrivals, KILL_AT * self.count, spout=spout, drain=drain)
        first = self.cluster[0]
        self.output.step(
            f"kill -9 of broker 1 (process {first.pid}) after {arrivals.count:,} messages"
        )
        first.kill()
        self.until(arrivals, RESTART_AT * self.count, spout=spout, drain=drain)
        self.output.fact(f"the stream went on: {arrivals.different:,} different messages arrived")
        self.output.step("Broker 1 is started again and rejoins while the stream runs")
        first.start()
        self.serving()
        self.show(first, 3)
        self.output.step("The rest of the stream")
        self.until(arrivals, self.count, spout=spout, drain=drain)
        self.finish("spout", spout)
        self.finish("drain", drain)
        summary = json.loads(report.read_text())
        self.output.fact(
            f"spout: {summary['confirmed']:,} confirmed, {summary['resent']:,} sent again after "
            f"{summary['failovers']} failover(s)"
        )
        self.check(summary["confirmed"] == self.count, "every line was confirmed")
        self.check(summary["failovers"] >= 1, "the producer did lose its broker and found another")
        self.judge(arrivals, output, digest)

    def judge(self, arrivals: Arrivals, output: Path, digest: str) -> None:
        """Compare the received messages with those sent, repeats included."""
        leftover = self.folder / "leftover.jsonl"
        self.tool("drain", *self.draining(leftover, 2), "--timeout", "2")
        with output.open("ab") as file:
            file.write(leftover.read_bytes())
        arrivals.read()
        self.check(arrivals.different == self.count, f"{self.count:,} different ids arrived")
        self.check(
            arrivals.first_digest.hexdigest() == digest,
            "the first occurrence of each id, in arrival order, has the SHA-256 of the input",
        )
        self.check(
            arrivals.unflagged_repeats == 0,
            f"repeats: {arrivals.flagged_repeats} flagged as redelivered, "
            f"{arrivals.unflagged_repeats} unflagged: what spout sent again was taken once",
        )

    def leave_some(self) -> tuple[int, str]:
        """Publish messages that nobody consumes before the cluster stops."""
        self.output.step(f"{KEPT_LINES:,} more messages stay in the queue; then qpid-cluster -k -f")
        kept = self.folder / "kept.txt"
        digest = write_input(kept, KEPT_LINES)
        self.tool(
            "spout", "--broker", self.cluster.brokers(1), "--queue", QUEUE, "--file", str(kept),
            "--sequence", "--durable", "--quiet", "--history", str(self.histories),
        )  # fmt: skip
        self.stop_all()
        return KEPT_LINES, digest

    def stop_all(self) -> None:
        """The clean stop of all members, and its trace in their stores."""
        self.serving()
        self.tool("qpid-cluster", "--all-stop", "--force", str(self.cluster[1].address))
        codes = self.cluster.wait_stopped()
        self.check(codes == [0, 0, 0], f"all three brokers ended by themselves, codes {codes}")
        stores = [
            json.loads(self.tool("qpid-cluster-store", "--json", str(member.data_dir)))
            for member in self.cluster.members
        ]
        self.check(
            all(store["marker"] == "clean" for store in stores),
            "all three stores are marked clean",
        )
        ends = {(store["epoch"], store["position"], store["digest"]) for store in stores}
        self.check(
            len(ends) == 1, f"all three end at position {stores[0]['position']}, with one digest"
        )

    def restart_all(self) -> None:
        """Restart from the stores alone."""
        self.output.step("The whole cluster starts again from its clean stores")
        self.cluster.launch()
        self.serving()
        self.show(self.cluster[2], 3)

    def find_them_again(self, kept: int, digest: str) -> None:
        """The messages left in the queue are still there."""
        self.output.step("The messages that stayed are drained from broker 2")
        path = self.folder / "kept.jsonl"
        drain = self.start_tool("drain", *self.draining(path, 1), "--count", str(kept))
        arrivals = Arrivals(path)
        self.until(arrivals, kept, drain=drain)
        self.finish("drain", drain)
        self.check(
            arrivals.count == kept and arrivals.first_digest.hexdigest() == digest,
            f"{kept:,} messages, same content, same order, none twice",
        )
        self.stop_all()

    def verify(self) -> None:
        """The check of the members' logs and of their clients' histories."""
        self.output.step(
            "qpid-cluster-verify reads the logs of all three members and their clients (Spark would"
            " take over from 12 million rows on)"
        )
        logs = [str(member.data_dir / "memberlog") for member in self.cluster.members]
        shown = self.tool(
            "qpid-cluster-verify", *logs, str(self.histories), limit_seconds=VERIFY_SECONDS
        ).strip()
        self.output.fact(shown)
        confirmed = f"{self.count + KEPT_LINES:,} confirmed by clients, all accounted for"
        self.check(confirmed in shown, f"{confirmed}; all logs are consistent")

    def show(self, member: BrokerProcess, size: int) -> None:
        """Show qpid-cluster as an operator sees it, and check its size."""
        shown = ""

        def missing() -> str:
            nonlocal shown
            try:
                shown = self.tool("qpid-cluster", str(member.address))
            except DemoFailed as problem:  # the view of a busy machine may change at any time
                return str(problem).rpartition("\n")[2] if member.alive else ""
            return "" if f"Cluster Size: {size}" in shown else f"{member} sees fewer than {size}"

        self.wait(missing, self.where)
        self.output.fact(shown.rstrip())
        self.check(f"Cluster Size: {size}" in shown, f"{size} members")

    def until(self, arrivals: Arrivals, wanted: float, **clients: subprocess.Popen[bytes]) -> None:
        """Wait until this many different messages have arrived, as long as there is progress."""

        def missing() -> str:
            for label, client in clients.items():
                if client.poll() not in (None, 0):
                    raise DemoFailed(f"{label} ended with code {client.returncode}")
            arrivals.read()
            if arrivals.different >= wanted:
                return ""
            return f"so far {arrivals.different:,} have arrived, {wanted:,.0f} are waited for"

        self.wait(missing, self.where)

    def serving(self) -> None:
        """Wait until all members serve together."""

        def missing() -> str:
            late = self.cluster.late()
            return "" if late is None else f"{late[0]} does not serve with all yet: {late[1]}"

        self.wait(missing)

    def where(self) -> str:
        """Which of the running members does not serve, and its progress; empty: all serve."""
        late = self.cluster.late([one for one in self.cluster.members if one.alive])
        return "" if late is None else f"; {late[0]} does not serve yet: {late[1]}"

    def wait(self, missing: Callable[[], str], where: Callable[[], str] = lambda: "") -> None:
        """Wait until nothing is missing; report now and then what is, and end if nothing changes.

        What is missing, or the state of the members meanwhile (`where`), must become one that was
        not seen before; otherwise a member that comes and goes would be waited for without end.
        """
        told: set[str] = set()
        shown_at = moved_at = time.monotonic()
        while text := missing():
            is_still = text in told
            text += where() if is_still else ""
            now = time.monotonic()
            if text not in told:
                told.add(text)
                moved_at = now
            if now - moved_at > STILL_SECONDS:
                tails = "\n".join(member.log_tail() for member in self.cluster.members)
                raise DemoFailed(f"for {STILL_SECONDS:g} s nothing went on: {text}\n{tails}")
            if now - shown_at > SHOWN_SECONDS:
                shown_at = now
                self.output.fact(f"waiting: {text}" if is_still else text)
            time.sleep(STILL_POLL_SECONDS if is_still else POLL_SECONDS)

    def draining(self, path: Path, first: int) -> list[str]:
        """Arguments of a drain of the queue into a file, beginning at that member."""
        return [
            "--broker", self.cluster.brokers(first), "--queue", QUEUE, "--format", "json",
            "--output", str(path), "--quiet", "--history", str(self.histories),
        ]  # fmt: skip

    def start_tool(
        self, name: str, *arguments: str, stdout: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a client command in the background; its errors go to our terminal."""
        with (stdout or Path("/dev/null")).open("wb") as out:
            client = subprocess.Popen(
                [*command(name), *arguments], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out
            )
        self._clients.append(client)
        return client

    def finish(self, label: str, client: subprocess.Popen[bytes]) -> None:
        """Wait for a client command to end successfully."""
        try:
            code = client.wait(TOOL_SECONDS)
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"{label} did not end in {TOOL_SECONDS:g} s") from None
        self.check(code == 0, f"{label} ended with code {code}")

    def tool(self, name: str, *arguments: str, limit_seconds: float = TOOL_SECONDS) -> str:
        """Run one command to its end and return what it printed; a failure ends the demo."""
        done = subprocess.run(
            [*command(name), *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_seconds,
            check=False,
        )
        if done.returncode != 0:
            raise DemoFailed(
                f"{name} ended with code {done.returncode}\n{done.stdout}{done.stderr}".rstrip()
            )
        return done.stdout

    def check(self, true: bool, claim: str) -> None:
        """State a checked claim, or fail with it."""
        if not true:
            raise DemoFailed(f"not true: {claim}")
        self.output.fact(f"ok: {claim}")


@click.command(name="demo", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--data", default="demo-data", help="Folder for all files; emptied first.")
@click.option(
    "--count", default=200_000, type=click.IntRange(min=20_000), help="Messages in the stream."
)
def demo(data: str, count: int) -> int:
    """Run the main job on real input, checking every step."""
    folder = Path(data).absolute()
    strangers = (
        []
        if not folder.exists()
        else [one.name for one in folder.iterdir() if not OWN_FILES.fullmatch(one.name)]
    )
    if strangers:
        what = f"{folder} holds something else than an earlier demo: {strangers[0]}"
        raise ToolError(f"{what}; give --data another folder, as all in it is deleted", Exit.USAGE)
    shutil.rmtree(folder, ignore_errors=True)
    run = Demo(folder, count)
    try:
        with ended_by(signal.SIGTERM):
            run.run()
    except (ClusterTrouble, Mixed) as trouble:
        raise DemoFailed(str(trouble)) from None
    except subprocess.TimeoutExpired as late:
        raise DemoFailed(f"{late.cmd[0]} did not end in {late.timeout:g} s") from None
    print(f"\nAll true, in {run.output.seconds():.0f} s. Files are in {folder}.")
    return Exit.OK


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `python -m tools.demo`."""
    run_command(demo, arguments)


if __name__ == "__main__":
    main()
