// What is asked all the time while the page is open: the overview for the heading and the charts, the cluster, and what is wrong with it.

import { ApiError, get, loggedIn, path } from "./api.js";
import { Series } from "./chart.js";

const EVERY_MS = 2000;
export const messages = new Series(), rates = new Series();
export const now = { overview: null, cluster: null, found: null, problem: "" };
const listeners = new Set();

export function onLive(callback) {
  listeners.add(callback);
  return () => listeners.delete(callback);
}

const per = (stats, key) => stats?.[`${key}_details`]?.rate ?? 0;

const rateSample = (stats) => ({
  publish: per(stats, "publish"),
  deliver: per(stats, "deliver_get"),
  ack: per(stats, "ack"),
  confirm: per(stats, "confirm"),
});

// A broker of another kind, or an older one, has no page for the ring, and not every user may see it: the rest is shown all the same.
async function ours(what) {
  try {
    return await get(path("qpid", what));
  } catch (problem) {
    if (problem instanceof ApiError && [401, 403, 404].includes(problem.status)) return null;
    throw problem;
  }
}

export async function poll() {
  if (loggedIn() && !document.hidden) {
    try {
      [now.overview, now.cluster, now.found] = await Promise.all([get(path("overview")), ours("cluster"), ours("findings")]);
      now.problem = "";
      const totals = now.overview.queue_totals ?? {};
      messages.add({ ready: totals.messages_ready ?? 0, unacked: totals.messages_unacknowledged ?? 0 });
      rates.add(rateSample(now.overview.message_stats));
    } catch (problem) {
      now.problem = problem.message;
    }
    for (const callback of [...listeners]) callback();
  }
}

export async function run() {
  for (;;) {
    await poll();
    await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
  }
}
