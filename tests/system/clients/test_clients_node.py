"""Clients of node: publish with confirm on member 1, consume with ack from member 3.

`amqplib` reads frames as AMQP specifies them, `@cloudamqp/amqp-client` as RabbitMQ writes them: it
takes reserved fields for empty.

The tests need node and npm, which brokers do not; where these are missing they are skipped, with
the reason.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.system.support.clusters import admitted
from tools.demo.local_cluster import LocalCluster

pytestmark = pytest.mark.system

VERSION = "2.3.1"
PACKAGES = (f"amqplib@{VERSION}", "@cloudamqp/amqp-client@4.1.1")
SCRIPT = """
const amqp = require('amqplib');
const [first, third] = process.argv.slice(2);
const open = (member) => amqp.connect('amqp://guest:guest@' + member).catch((error) => {
  console.error(String(error.stack));  // nothing is done yet: the caller may run us again
  process.exit(75);
});
(async () => {
  const publisher = await open(first);
  const consumer = await open(third);
  const out = await publisher.createConfirmChannel();
  const into = await consumer.createChannel();
  await out.assertQueue('node', { durable: true });
  for (let n = 0; n < 50; n++) {
    out.sendToQueue('node', Buffer.from('message ' + n), {
      persistent: true, messageId: String(n), headers: { n, list: [1, 'two', true] },
    });
  }
  await out.waitForConfirms();
  const arrived = [];
  await into.prefetch(10);
  await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error('only ' + arrived.length + ' came')), 60000).unref();
    into.consume('node', (message) => {
      arrived.push({
        body: message.content.toString(), redelivered: message.fields.redelivered,
        headers: message.properties.headers,
      });
      into.ack(message);
      if (arrived.length === 50) resolve();
    }).catch(reject);
  });
  const left = await out.checkQueue('node');
  await consumer.close();
  await publisher.close();
  console.log(JSON.stringify({ arrived, left: left.messageCount }));
})().catch((error) => { console.error(error.stack); process.exit(1); });
"""
CLOUDAMQP = """
import { AMQPClient } from '@cloudamqp/amqp-client';
const [first, third] = process.argv.slice(2);
const open = async (member) => {
  const client = new AMQPClient('amqp://guest:guest@' + member + '/?name=cloud');
  await client.connect().catch((error) => { console.error(String(error)); process.exit(75); });
  return client;
};
const publisher = await open(first), consumer = await open(third);
const out = await publisher.channel(), into = await consumer.channel();
await out.confirmSelect();
await out.queueDeclare('cloud', { durable: true });
for (let n = 0; n < 50; n++) {
  await out.basicPublish('', 'cloud', 'message ' + n, { deliveryMode: 2, headers: { n } });
}
const arrived = [];
await into.basicQos(10);
await new Promise((resolve, reject) => {
  setTimeout(() => reject(new Error('only ' + arrived.length + ' came')), 60000).unref();
  into.basicConsume('cloud', { noAck: false }, async (message) => {
    arrived.push({ body: message.bodyString(), redelivered: message.redelivered,
                   headers: message.properties.headers });
    await message.ack();
    if (arrived.length === 50) resolve();
  }).catch(reject);
});
const left = await out.queueDeclare('cloud', { passive: true });
await consumer.close();
await publisher.close();
console.log(JSON.stringify({ arrived, left: left.messageCount }));
"""


@pytest.fixture(scope="module")
def amqplib() -> Path:
    """A folder with both libraries installed, kept between runs because npm is slow."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            reason = f"{program} is not installed on this machine"
            print(reason)
            pytest.skip(reason)
    folder = Path(tempfile.gettempdir()) / f"qpid-cluster-py-node-{VERSION}-{os.getuid()}"
    done = folder / "installed"  # an aborted run may have left a part
    if not done.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / "package.json").write_text('{"private": true}')
        installed = subprocess.run(
            [
                "npm",
                "install",
                "--no-audit",
                "--no-fund",
                "--fetch-retries=1",
                "--fetch-timeout=20000",
                *PACKAGES,
            ],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        if installed.returncode:
            pytest.skip(f"npm install {' '.join(PACKAGES)}: {installed.stderr.strip()[:200]}")
        done.touch()
    return folder


def told_by(program: Path, cluster: LocalCluster) -> dict[str, Any]:
    """The last output of a node program."""

    def run() -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["node", str(program), str(cluster[0].address), str(cluster[2].address)],
            cwd=program.parent,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        if done.returncode == os.EX_TEMPFAIL:
            raise ConnectionError(done.stderr)
        return done

    ended = admitted(run)
    assert ended.returncode == 0, ended.stderr
    told: dict[str, Any] = json.loads(ended.stdout)
    assert told["left"] == 0
    assert [message["body"] for message in told["arrived"]] == [f"message {n}" for n in range(50)]
    assert not any(message["redelivered"] for message in told["arrived"])
    return told


def test_node_amqplib(amqplib: Path, cluster: LocalCluster) -> None:
    script = amqplib / "round-trip.js"
    script.write_text(SCRIPT)
    told = told_by(script, cluster)
    assert told["arrived"][7]["headers"] == {"n": 7, "list": [1, "two", True]}


def test_node_cloudamqp(amqplib: Path, cluster: LocalCluster) -> None:
    script = amqplib / "round-trip.mjs"
    script.write_text(CLOUDAMQP)
    assert told_by(script, cluster)["arrived"][7]["headers"] == {"n": 7}
