// The frame of the pages: login, heading, navigation, and which page an address means.

import { h, link, pill, replace } from "./dom.js";
import { get, logout, loggedIn, login, onUnauthorised, path } from "./api.js";
import { field } from "./forms.js";
import { now, onLive, poll, run } from "./live.js";
import { gravest } from "./needs.js";
import { tell } from "./notices.js";
import { overview } from "./pages/overview.js";
import { members } from "./pages/members.js";
import { queues } from "./pages/queues.js";
import { queue } from "./pages/queue.js";
import { connections } from "./pages/connections.js";
import { channels } from "./pages/channels.js";
import { exchanges } from "./pages/exchanges.js";
import { exchange } from "./pages/exchange.js";
import { users } from "./pages/users.js";
import { vhosts } from "./pages/vhosts.js";
import { links } from "./pages/links.js";
import { policies } from "./pages/policies.js";
import { health } from "./pages/health.js";

// With the tag that a page's content is for, if not for every user.
const NAVIGATION = [
  ["overview", "Overview", overview], ["members", "Members", members, "monitoring"], ["queues", "Queues", queues],
  ["exchanges", "Exchanges", exchanges], ["connections", "Connections", connections], ["channels", "Channels", channels],
  ["policies", "Policies", policies], ["links", "Links", links, "monitoring"], ["users", "Users", users, "administrator"], ["vhosts", "Virtual hosts", vhosts], ["health", "Alarms", health],
];
const PAGES = { ...Object.fromEntries(NAVIGATION.map(([name, , page]) => [name, page])), queue, exchange };
const BELONGS = { queue: "queues", exchange: "exchanges" };
const UPDATE_MS = 3000;

const main = document.getElementById("main"), top = document.getElementById("top");
let shown = null, user = null;

function heading() {
  const health = h("span", { class: "health" }), place = h("strong", {}), member = h("span", { class: "member-name" });
  const may = (tag) => !tag || user.tags.includes(tag) || user.tags.includes("administrator");
  const navigation = h("nav", { "aria-label": "Pages" }, h("ul", {}, NAVIGATION.filter(([, , , tag]) => may(tag)).map(([page, title]) => h("li", {}, link(title, page)))));
  replace(top,
    h("div", { class: "bar" },
      h("img", { src: "icon.svg", alt: "", width: 28, height: 28 }),
      h("div", { class: "place" }, place, member), health,
      h("span", { class: "who" }, user?.name ?? ""),
      h("button", { type: "button", class: "quiet", onclick: leave }, "Log out")),
    navigation);
  return { navigation, draw() {
    const { overview, cluster, found, problem } = now;
    if (overview) {
      place.textContent = overview.cluster_name || "stand-alone";
      member.textContent = overview.node ?? "";
      document.title = `${overview.cluster_name || "stand-alone"} – message broker cluster`;
    }
    const known = cluster ? [cluster.status === "ACTIVE" ? "good" : "warn", cluster.status] : !overview && ["off", "asking"];
    const state = problem ? ["bad", problem] : gravest(found) ?? known;
    replace(health, state && pill(...state));
  } };
}

let frame = null;

function leave() {
  logout();
  showLogin();
}

function showLogin(reason = "") {
  shown = null;
  user = null;
  top.hidden = true;
  document.title = "Log in – message broker cluster";
  const problem = h("p", { class: "problem", role: "alert" }, reason);
  const form = h("form", { class: "login panel", "aria-label": "Log in", onsubmit: async (event) => {
    event.preventDefault();
    const values = new FormData(form);
    problem.textContent = "";
    try {
      user = await login(values.get("user"), values.get("password"));
      enter();
    } catch (refusal) {
      problem.textContent = refusal.status === 401 ? "The broker does not let this user in, or the password is wrong." : refusal.message;
      form.querySelector("[name=password]").focus();
    }
  } },
    h("img", { src: "icon.svg", alt: "", width: 48, height: 48 }), h("h1", {}, "Message broker cluster"),
    field("User", "user", { required: true, autocomplete: "username", autocapitalize: "none" }),
    field("Password", "password", { type: "password", autocomplete: "current-password" }),
    problem, h("div", { class: "actions" }, h("button", { class: "primary" }, "Log in")));
  replace(main, form);
  form.querySelector("input").focus();
}

function enter() {
  frame = heading();
  top.hidden = false;
  poll();
  open();
}

function open() {
  if (!loggedIn()) return showLogin();
  const [name, ...names] = location.hash.replace(/^#\/?/, "").split("/");
  const page = PAGES[name] ?? overview;
  const current = BELONGS[name] ?? (PAGES[name] ? name : "overview");
  for (const anchor of frame.navigation.querySelectorAll("a")) {
    const is = anchor.getAttribute("href") === `#/${current}`;
    if (is) { anchor.setAttribute("aria-current", "page"); anchor.scrollIntoView({ block: "nearest", inline: "center" }); } else anchor.removeAttribute("aria-current");
  }
  try {
    shown = page(...names.map(decodeURIComponent));
  } catch (problem) {
    shown = { title: "Not found", node: h("p", {}, problem.message) };
  }
  const title = h("h1", { tabindex: "-1" }, shown.title);
  const trouble = h("p", { class: "problem", role: "alert", hidden: true });
  shown.trouble = trouble;
  replace(main, title, trouble, shown.node);
  title.focus({ preventScroll: true });
  scrollTo(0, 0);
  update();
}

async function update() {
  const page = shown;
  if (!page?.update || page.updating) return;
  page.updating = true; // of this page: a slow answer to another one holds nothing up
  try {
    await page.update();
    page.trouble.hidden = true;
  } catch (problem) {
    page.trouble.textContent = problem.message;
    page.trouble.hidden = false;
  } finally {
    page.updating = false;
  }
}

onUnauthorised(() => { if (user) showLogin("You were logged out: the broker does not accept this login any more."); });
onLive(() => { frame?.draw(); shown?.live?.(); });
addEventListener("hashchange", open);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the part of an address after # names a page here
  main.focus();
});
addEventListener("unhandledrejection", (event) => { tell(event.reason?.message ?? String(event.reason), "bad"); });
setInterval(() => { if (!document.hidden && loggedIn()) update(); }, UPDATE_MS);

async function start() {
  if (!loggedIn()) return showLogin();
  try {
    user = await get(path("whoami"));
    enter();
  } catch (problem) {
    showLogin(problem.message);
  }
}

start();
run();
