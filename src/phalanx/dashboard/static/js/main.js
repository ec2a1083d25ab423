// The dashboard of Phalanx: plain ES modules without a build step, served from the wheel at /dashboard. The server joins this
// module and all that it imports to one file (phalanx/dashboard/scripts.py).
//
//   main.js           this file: the head of the page, which page is shown, signing in, when a page loads again
//   pages.js          the list of pages                  pages/*.js    one page each, a function with the name of its file
//   early.js          the requests of the first view, which begin before anything is drawn
//   visibility.js     when this tab is visible
//   dom.js            h() and render()                   components.js cards, tables, bars, dialogs, toasts
//   api.js            requests to the public HTTP API    format.js     numbers, times, amounts
//   live.js           events in this tab                 stream-worker.js, event-stream.js  one stream for all tabs
//   router.js         addresses: #/jobs?phase=pending    other-servers.js  the move to another server
//
// A page is a function of a context that returns an object. Its data live in the closure:
//
//   export function jobs(context) {
//     let list = null;
//     return {
//       title: () => "Jobs",                                    // for the browser's title
//       load: async (signal) => { list = await get("/jobs", { query: context.params, signal }); },
//       view: () => list && h("div", …),                        // after load, and after context.update()
//       wants: (event) => event.kind.startsWith("Job"),         // events after which it loads again
//       onEvents: (events) => {},                               // optional: each batch of events, e.g. to append lines
//       close: () => {},                                        // optional: stop what it started
//     };
//   }
//
// The context has: parts and params of the address (#/job/j-1?tab=logs → ["job", "j-1"], {tab: "logs"}), session,
// update() to draw again, ready() to draw what is loaded so far, refresh() to load again soon, setParams({phase: "pending"}) for filters.
//
// A page that has changed loads again at most once a second, and never takes more than a tenth of the time: with a slow
// server or a large cluster it loads less often. Nothing here may use innerHTML or style attributes: the policy of the
// page refuses them, and names and logs come from users.

import { h, render } from "./dom.js";
import { ApiError, call, get, onRefusal } from "./api.js";
import { follow } from "./live.js";
import { OtherServers } from "./other-servers.js";
import { HEAD, PAGES } from "./pages.js";
import { href, parse, setParams } from "./router.js";
import { isDark } from "./colours.js";
import { problem, toast } from "./components.js";
import { visible } from "./visibility.js";

const SOONEST_MS = 1000;
const SHARE_OF_TIME = 10; // a page that took 0.5 s to load loads again after 5 s
const TICK_MS = 10_000; // ages are drawn again this often
const SERVERS_MS = 30_000; // how often the list of servers is loaded
const MOVE_AFTER_MS = 5000; // the server did not answer for so long: look for another one
const MOVE_AGAIN_MS = 2000;
const PATIENCE_MS = 3000; // with a server that may be gone
const AGAIN_MS = 2000; // after which the session is asked for again
const FOLLOW_AFTER_MS = 100; // the first view is painted by then
const BLANK_MS = 100; // data that arrive sooner are the first thing that is drawn: each frame delays the next one

const app = document.getElementById("app");
const state = { session: undefined, servers: null, connection: "connecting", wasLive: false, page: null, name: "", error: null };
let live = null;
const others = new OtherServers();

// Drawing

let isBlank = true;
let drawing = false;
let drawn;
const firstView = new Promise((resolve) => (drawn = resolve));
function draw() {
  if (isBlank && isLoading()) return;
  if (isBlank) return drawNow();
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(drawNow);
}

function drawNow() {
  isBlank = false;
  drawing = false;
  render(app, head(), h("main", { id: "content", tabindex: -1, "aria-busy": String(isLoading()) }, content()));
  if (!isLoading()) drawn();
}
setTimeout(() => isBlank && drawNow(), BLANK_MS);

function content() {
  if (state.session === null) return signIn();
  if (state.session === undefined && !state.error) return h("p.muted", "Loading …");
  const { page, error } = state;
  return [error ? problem(error.message) : null, (page && page.isLoaded && page.view()) || (error ? null : h("p.muted", "Loading …"))];
}

const isLoading = () => state.session === undefined || Boolean(state.session && state.page && !state.page.isLoaded && !state.error);

function head() {
  return h(
    "header.top",
    h("b", "Phalanx"),
    state.session
      ? h(
          "nav",
          { "aria-label": "Pages" },
          HEAD.map(([name, title]) =>
            h("a", { href: href(name), "aria-current": name === state.name || (state.name === "job" && name === "jobs") ? "page" : undefined }, title),
          ),
        )
      : null,
    h(
      "span.right",
      state.session ? connection() : null,
      themeButton(),
      state.session && state.session.has_session
        ? h("button.link", { type: "button", onclick: signOut }, `Sign out ${state.session.name}`)
        : null,
    ),
  );
}

const CONNECTIONS = {
  live: "live",
  standby: "this server is a standby",
  "signed-out": "signed out",
};

function connection() {
  const words = CONNECTIONS[state.connection] || (state.wasLive ? "reconnecting …" : "connecting …");
  return h("span", { role: "status" }, h("span.dot", { class: state.connection }), serverText(), words);
}

function serverText() {
  const leader = state.servers && state.servers.leader;
  if (!leader) return "";
  const standbys = state.servers.standbys.filter((each) => each.silent_s === null).length;
  const count = standbys === 1 ? " · 1 standby" : standbys ? ` · ${standbys} standbys` : "";
  return `leader ${leader.name}${count} · `;
}

// Theme. This script blocks rendering, so nothing is seen in another theme first.

function themeButton() {
  const dark = isDark();
  return h("button.link", { type: "button", onclick: () => choose(dark ? "light" : "dark") }, dark ? "Light theme" : "Dark theme");
}
function choose(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("theme", theme);
  draw();
}
if (localStorage.getItem("theme")) document.documentElement.dataset.theme = localStorage.getItem("theme");
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

// Signing in: the token is exchanged for a cookie that scripts cannot read, and is kept nowhere.

let signInProblem = null;
function signIn() {
  return h(
    "form.panel.sign-in",
    {
      onsubmit: async (event) => {
        event.preventDefault();
        const field = event.target.querySelector("input");
        try {
          await call("POST", "/session", { body: { token: field.value.trim() } });
          field.value = "";
          signInProblem = null;
          await start();
        } catch (error) {
          signInProblem = error.message;
          draw();
        }
      },
    },
    h("h1", "Sign in"),
    h("p.muted", "Enter your API token. ", h("code", "phalanx token create NAME"), " creates one."),
    signInProblem ? problem(signInProblem) : null,
    h("label", { for: "token" }, "Token"),
    h("input", { id: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true }),
    h("button.primary", { type: "submit" }, "Sign in"),
  );
}

async function signOut() {
  await call("DELETE", "/session").catch((error) => toast(error.message, { error: true }));
  leave();
  state.session = null;
  draw();
}

onRefusal((error) => {
  if (error.status === 401 && state.session !== null) {
    leave();
    state.session = null;
    draw();
  }
  if (error.status === 307) searchSoon(0);
});

// Another server leads, or this one does not answer: go to a server that answers. A standby only redirects, and a page cannot
// follow. Until another server answers or this one leads, the page stays as it is.
let search = null; // the search that goes on; a live page ends it
function searchSoon(pauseMs) {
  if (!search) keepSearching((search = {}), pauseMs);
}

async function keepSearching(own, pauseMs) {
  do {
    await pause(pauseMs);
    await visible();
    if (search === own && (state.connection === "standby" || !(await answersHere()))) {
      await loadServers();
      if (search === own && (await others.move())) return; // the search stays set: this page is left
    }
    pauseMs = MOVE_AGAIN_MS;
  } while (search === own && ["connecting", "standby"].includes(state.connection));
  if (search === own) search = null;
}

const pause = (ms) => new Promise((resume) => setTimeout(resume, ms));

// Whether this server answers, and leads.
async function answersHere() {
  const answer = await fetch("/readyz", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) }).catch(() => null);
  return Boolean(answer && answer.ok);
}

// Pages

function leave() {
  if (!state.page) return;
  state.page.stop.abort();
  clearTimeout(state.page.timer);
  if (state.page.close) state.page.close();
  state.page = null;
}

function show() {
  if (state.session === null) return draw();
  const { parts, params } = parse(location.hash);
  const name = Object.hasOwn(PAGES, parts[0]) ? parts[0] : "overview";
  if (parts.length && name !== parts[0]) toast(`There is no page ${parts[0]}.`, { error: true });
  const address = [name, ...parts.slice(1)].join("/");
  if (state.page && state.page.address === address) {
    state.page.context.params = params;
    return refreshNow();
  }
  leave();
  const ready = () => {
    if (!state.page || state.page.context !== context) return; // another page is shown by now
    state.page.isLoaded = true;
    draw();
  };
  const context = { parts, params, update: draw, ready, refresh, setParams, get session() { return state.session || {}; } };
  const page = { address, context, stop: new AbortController(), tookMs: 0, timer: 0, isLoaded: false, isStale: false, isBusy: false };
  state.page = Object.assign(page, PAGES[name](context));
  const isFirst = state.name === "";
  state.name = name;
  state.error = null;
  refreshNow().then(() => {
    if (!isFirst) {
      scrollTo(0, 0);
      document.getElementById("content").focus({ preventScroll: true });
    }
  });
  draw();
}

async function refreshNow() {
  const page = state.page;
  if (!page) return;
  if (page.isBusy) {
    page.isStale = true;
    return;
  }
  page.isBusy = true;
  page.isStale = false;
  clearTimeout(page.timer);
  page.timer = 0;
  const began = performance.now();
  try {
    await page.load(page.stop.signal);
    page.isLoaded = true;
    if (state.page === page) state.error = null;
  } catch (error) {
    if (page.stop.signal.aborted) return;
    if (!(error instanceof ApiError)) console.error(error);
    if (error.status !== 401 && state.page === page) state.error = error;
    page.isStale = error.status === 0 || error.status >= 500 || error.status === 429;
  } finally {
    page.isBusy = false;
    page.tookMs = performance.now() - began;
  }
  document.title = `${page.title()} · Phalanx`;
  draw();
  if (page.isStale) refresh();
}

// Load again soon, after a pause that depends on how long it took the last time.
function refresh() {
  const page = state.page;
  if (!page || page.timer) return;
  if (page.isBusy) {
    page.isStale = true;
    return;
  }
  page.timer = setTimeout(() => {
    page.timer = 0;
    if (document.hidden) page.isStale = true;
    else refreshNow();
  }, Math.max(SOONEST_MS, SHARE_OF_TIME * page.tookMs));
}

// Events

function take(events) {
  const page = state.page;
  if (!page) return;
  if (page.onEvents) page.onEvents(events);
  if (page.wants && events.some(page.wants)) refresh();
}

async function loadServers() {
  const servers = await get("/servers", { signal: AbortSignal.timeout(PATIENCE_MS) }).catch(() => null);
  if (!servers) return;
  // Standbys are shown once the page could move to them.
  await others.know(servers);
  state.servers = servers;
  draw();
}

function onState(connection) {
  state.connection = connection;
  if (connection === "live") {
    state.wasLive = true;
    search = null;
    if (!document.hidden) loadServers(); // the worker repeats the state when the tab is shown
    refresh();
  }
  if (connection === "standby") searchSoon(0);
  if (connection === "connecting") searchSoon(MOVE_AFTER_MS);
  if (connection === "signed-out" && state.session) visible().then(start);
  draw();
}

// Start

async function start() {
  if (state.session === undefined) show(); // its data are loaded at the same time as the session
  try {
    state.session = await get("/whoami");
    state.error = null;
  } catch (error) {
    if (error.status === 401) state.session = null;
    else {
      state.error = error;
      pause(AGAIN_MS).then(visible).then(start);
    }
  }
  if (state.session) {
    if (live) live.signedIn();
    else followSoon();
    if (!state.page) show();
  }
  draw();
}

// The worker that follows the events is started after the first view, which it would delay.
async function followSoon() {
  await Promise.race([firstView, pause(PATIENCE_MS)]);
  await pause(FOLLOW_AFTER_MS);
  await visible();
  live ??= follow({ onEvents: take, onResync: refresh, onState });
}

addEventListener("hashchange", show);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the fragment is the address of the page
  document.getElementById("content").focus();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && state.page && state.page.isStale) refreshNow();
});
setInterval(() => document.hidden || !state.page || draw(), TICK_MS);
setInterval(() => document.hidden || state.connection !== "live" || loadServers(), SERVERS_MS);
start();
