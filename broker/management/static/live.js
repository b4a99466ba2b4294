// What is asked all the time while the page is open: the overview for the heading and the charts, the cluster, and what is wrong with it.

import { ApiError, get, loggedIn, path, query } from "./api.js";
import { LAST_MINUTE, Series, growth, levels } from "./chart.js";

const EVERY_MS = 2000;
export const messages = new Series(), rates = new Series();
export const now = { overview: null, cluster: null, found: null, problem: "" };
const listeners = new Set();

export function onLive(callback) {
  listeners.add(callback);
  return () => listeners.delete(callback);
}

const DEPTHS = { ready: "messages_ready", unacked: "messages_unacknowledged" };
const COUNTS = { publish: "publish", deliver: "deliver_get", ack: "ack", confirm: "confirm" };

// With what the member sampled before this page was opened, by this browser's clock.
function begin(series, samples) {
  const behind = Date.now() - samples.at(-1)?.at;
  series.samples = samples.map((one) => ({ ...one, at: one.at + behind }));
}

const rateSample = (stats) => Object.fromEntries(Object.entries(COUNTS).map(([key, name]) => [key, stats?.[`${name}_details`]?.rate ?? 0]));

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
      const first = !messages.samples.length, overview = first ? query(path("overview"), LAST_MINUTE) : path("overview");
      [now.overview, now.cluster, now.found] = await Promise.all([get(overview), ours("cluster"), ours("findings")]);
      now.problem = "";
      const totals = now.overview.queue_totals ?? {};
      if (first) {
        begin(messages, levels(totals, DEPTHS));
        begin(rates, growth(now.overview.message_stats, COUNTS));
      }
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
