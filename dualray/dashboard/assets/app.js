// The live page: asks for what has changed, keeps it in tables, and draws them.
import { AGAIN, Bars, FAILED, LOST, OTHERS, barAt, drawDemand, drawTimeline, natural, perPixel, timeAt } from "./timeline.js";

const $ = (id) => document.getElementById(id);
const ASK_MS = 500, HIDDEN_MS = 5000, QUIET_ASKS = 20, PAGE = 50;
const COLUMNS = {
  tasks: ["task", "name", "kind", "state", "attempt", "owner", "worker", "node", "submitted", "started", "ended", "error", "waits for objects", "waits", "since", "actor"],
  actors: ["actor", "class", "name", "state", "node", "worker", "restarts", "owner", "reason"],
  objects: ["object", "size", "state", "owner", "held by", "used by tasks", "origin"],
  workers: ["worker", "node", "kind", "state", "runs", "task", "started", "ended", "reason"],
  spans: ["attempt", "task", "number", "worker", "started", "ended", "state", "done again", "name"],
};
const TABS = { tasks: "Tasks", spans: "Attempts", actors: "Actors", objects: "Objects", workers: "Workers", logs: "Logs" };
const SHOWN = {
  tasks: [1, 0, 3, 4, 6, 8, "lasted", 11], actors: [1, 0, 2, 3, 5, 6, 7, 8], objects: [0, 1, 2, 3, 4, 5, 6], workers: [0, 2, 3, 4, 6, 7, 8],
  spans: [8, 1, 2, 6, 3, 4, "lasted", 7],
};
const WORDS = {
  PENDING_ARGS_AVAIL: "waits for arguments", PENDING_NODE_ASSIGNMENT: "waits for a worker", SUBMITTED_TO_WORKER: "sent to its worker",
  PENDING_ACTOR_TASK_ARGS_FETCH: "its actor fetches arguments", PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY: "waits in its actor",
  WAITS_FOR_ACTOR: "waits for its actor", RUNNING: "running", FINISHED: "finished", FAILED: "failed", ALIVE: "alive", DEAD: "dead", PENDING_CREATION: "being made", RESTARTING: "restarting",
  NORMAL_TASK: "task", ACTOR_TASK: "method of an actor", ACTOR_CREATION_TASK: "constructor of an actor", STORED: "stored", EVICTED: "evicted",
  SPILLED: "spilled to disk", DELETED: "deleted", LOST: "lost", LOST_ATTEMPT: "lost with its worker or node", FREED: "freed", SUSPECT: "does not answer", DRAINING: "leaving", LEASED: "leased", IDLE: "idle", STARTING: "starting",
};
const STATES = { waiting: "has not begun", reading: "reading", running: "running", over: "ended", quiet: "nothing new" };
const BAD = new Set(["FAILED", "DEAD", "LOST", "LOST_ATTEMPT", "SUSPECT"]), WARN = new Set(["RESTARTING", "DRAINING", "EVICTED", "SPILLED"]), GOOD = new Set(["RUNNING", "ALIVE"]);

const token = (() => {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) { sessionStorage.setItem("dualray-token", given); history.replaceState(null, "", location.pathname); }
  return given || sessionStorage.getItem("dualray-token") || "";
})();

const runs = [], ME = Math.random().toString(36).slice(2);  // the server counts its pages
let chosen = 0, tab = "tasks", page = 0, sortBy = null, sortDown = false, view = null, wantedState = "", searchOfLink = null, tabState = "", dirty = true, listDirty = true, stateCounts = new Map();

function emptyTables() { return Object.fromEntries(["nodes", "workers", "tasks", "spans", "actors", "objects", "happened", "demand", "waits"].map((name) => [name, new Map()])); }
function newRun(number, name) {
  return { number, name, version: 0, head: {}, tables: emptyTables(), bars: new Bars(), marks: [], now: 0, dropped: {}, names: new Map(), colours: new Map(), parts: [], read: 0, answer: "", answered: -1, quiet: 0 };
}

async function ask(path) {
  const answer = await fetch(path, { headers: { "x-dualray-token": token }, cache: "no-store" });
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error || answer.statusText);
  return found;
}

// ---- What has changed -----------------------------------------------------------------------------------------------

// A moment of the run may come in several parts; it is shown when all are there, so all that is shown fits together.
function takePart(run, found) {
  if (run.head.run && found.head.run !== run.head.run) { Object.assign(run, newRun(run.number, run.name), { timeline: run.timeline, demand: run.demand }); return true; }
  run.version = found.version; run.parts.push(found);
  run.read += Object.values(found.tables).reduce((sum, rows) => sum + rows.length, 0);
  if (found.more) { dirty = true; return true; }
  const parts = run.parts; run.parts = []; run.read = 0;
  const before = run.now;
  run.head = found.head; run.dropped = found.dropped; run.now = Math.max(found.head.now_s || 0, 1e-6);
  run.colours = new Map(found.head.colours || []);
  for (const part of parts) take(run, part);
  if (run.now !== before && (tab === "tasks" || tab === "spans")) listDirty = true;
  dirty = true; drawDetail();
  return false;
}
function take(run, found) {
  for (const [name, rows] of Object.entries(found.tables)) {
    const table = run.tables[name];
    for (const row of rows) {
      if (row.length === 2 && row[1] === null) { table.delete(name === "demand" ? Number(row[0]) : row[0]); continue; }
      table.set(row[0], row);
      if (name === tab) listDirty = true;
      if (COLUMNS[name] && name !== "spans") row.text = text(name, row);
      if (name === "tasks" && !run.names.has(row[1])) run.names.set(row[1], run.names.size);
    }
    const most = { tasks: 200000, objects: 100000, workers: 50000, actors: 50000 }[name];
    while (most && table.size > most) { const first = table.keys().next().value; table.delete(first); }
  }
  if (run.bars.count > 400000) { run.bars = new Bars(); for (const span of run.tables.spans.values()) bar(run, span); }
  for (const span of found.tables.spans || []) bar(run, span);
  if (found.tables.happened) run.marks = [...run.tables.happened.values()].filter((row) => row[2] === "fault").map((row) => ({ time: row[1], words: row[3] }));
}
function bar(run, span) {
  const [key, , , worker, from, until, outcome, cause, name] = span;
  if (from === null || !worker) return;
  if (!run.names.has(name)) run.names.set(name, run.names.size);
  const flags = (outcome === "lost" ? LOST : outcome ? FAILED : 0) | (cause ? AGAIN : 0);
  run.bars.put(key, worker, from, until, run.names.get(name), flags);
}
function stateOf(name, row) {
  if (name === "spans") return row[6] === "lost" ? "LOST_ATTEMPT" : row[6] ? "FAILED" : row[5] === null ? "RUNNING" : "FINISHED";
  if (name === "objects") return row[2];
  return name === "tasks" && row[2] === "ACTOR_TASK" && (row[3] === "PENDING_NODE_ASSIGNMENT" || row[3] === "SUBMITTED_TO_WORKER") ? "WAITS_FOR_ACTOR" : row[3];
}
function text(name, row) { return (name === "spans" ? WORDS[stateOf(name, row)] + " " : name === "objects" ? `${row[0].slice(0, 8)}:${row[0].slice(32).replace(/^0+(?=.)/, "")} ` : "") + row.map((cell, at) => (at === 3 || at === 2) && WORDS[cell] ? WORDS[cell] + " " + cell : typeof cell === "string" ? cell : Array.isArray(cell) ? cell.join(" ") : "").join(" ").toLowerCase(); }

async function follow(run) {
  for (;;) {
    let wait = document.hidden ? HIDDEN_MS : ASK_MS;
    try {
      const found = await ask(`/api/${run.number}/changes?after=${run.version}&page=${ME}`), hasMore = takePart(run, found);
      wait = Math.max(wait, 1000 * (found.wait_s || 0));
      run.lost = "";
      if (hasMore) wait = 0; else await askAnswer(run);
    } catch (error) {
      run.lost = error instanceof TypeError ? "The server does not answer: `dualray dashboard` has ended." : error.message;
      wait = 2000; dirty = true;
    }
    await new Promise((done) => setTimeout(done, wait));
  }
}

// Of a run that is over: how it ended, and why it took so long.
async function askAnswer(run) {
  run.quiet = run.head.state === "quiet" ? run.quiet + 1 : 0;
  if (!(run.head.state === "over" || run.quiet > QUIET_ASKS) || run.answered === run.version || !run.head.tasks) return;
  run.answered = run.version;
  try { run.answer = (await ask(`/api/${run.number}/answer`)).text; } catch (error) { if (error instanceof TypeError) throw error; run.answer = ""; }
  dirty = true;
}

// ---- Words ----------------------------------------------------------------------------------------------------------

function element(name, content, properties) {
  const made = document.createElement(name);
  if (content !== undefined && content !== null) made.append(content);
  return Object.assign(made, properties);
}
function bytes(amount) {
  if (amount === null || amount === undefined) return "";
  for (const unit of ["B", "KiB", "MiB", "GiB"]) { if (amount < 1024) return (unit === "B" ? amount : amount.toPrecision(3)) + " " + unit; amount /= 1024; }
  return amount.toPrecision(3) + " TiB";
}
function time(s) { return s === null || s === undefined ? "" : s === 0 ? "0 s" : s < 1 ? (s * 1000).toFixed(s < .01 ? 3 : 1) + " ms" : s < 100 ? s.toFixed(3) + " s" : s.toFixed(1) + " s"; }
function count(n) { return (n ?? 0).toLocaleString("en"); }
function words(cell) { return WORDS[cell] || (cell ?? ""); }
function stateClass(cell) { return BAD.has(cell) ? "s-bad" : WARN.has(cell) ? "s-warn" : GOOD.has(cell) ? "s-good" : ""; }
function meter(used, total, said) {
  if (total === null || total === undefined) return element("td", said);
  const cell = element("td"), outer = element("span", null, { className: "meter", ariaHidden: "true" }), inner = element("i");
  inner.style.width = Math.min(100, 100 * used / (total || 1)) + "%"; outer.append(inner); cell.append(outer, said); return cell;
}
function header(table, names) {
  const row = element("tr");
  for (const name of names) row.append(element("th", name, { scope: "col" }));
  table.replaceChildren(element("thead", row)); const body = element("tbody"); table.append(body);
  if (table.id === "nodes") for (const [each, role] of [[table, "table"], [table.tHead, "rowgroup"], [body, "rowgroup"], [row, "row"], ...[...row.children].map((cell) => [cell, "columnheader"])]) each.setAttribute("role", role);  // folded, it is none for a browser
  return body;
}

// ---- Drawing --------------------------------------------------------------------------------------------------------

function draw() {
  requestAnimationFrame(draw);
  if (!runs.length || !(dirty || listDirty)) return;
  const run = runs[chosen];
  if (dirty) {
    dirty = false;
    drawHead(run); drawPictures(); drawHappened(run); drawWaits(run); drawNodes(run);
    if (runs.length > 1) drawComparison();
  }
  if (listDirty) { listDirty = false; tab === "logs" || drawList(); }
}
function drawHead(run) {
  document.title = `${run.name} - dualray`; $("title").textContent = runs.map((each) => each.name).join(" and ");
  const isWrong = run.head.state === "over" && run.head.error;
  const state = run.lost ? "not connected" : run.parts.length ? "reading" : isWrong ? "ended with an error" : STATES[run.head.state] || "connecting";
  if ($("state").textContent !== state) { $("state").textContent = state; }
  $("state").className = "badge " + (run.lost || isWrong ? "bad" : run.head.state === "running" ? "running" : "over");
  const clock = run.parts.length && run.head.now_s === undefined ? `reading: ${count(run.read)} rows until now` : clockWords(run);
  if ($("clock").textContent !== clock) $("clock").textContent = clock;
  const answers = runs.filter((each) => each.answer && each.head.state !== "running").map((each) => (runs.length > 1 ? `${each.name}: ` : "") + each.answer);
  if ($("answers").dataset.key !== answers.join("\n")) { $("answers").dataset.key = answers.join("\n"); $("answers").replaceChildren(...answers.map((each) => element("p", each))); }
  const wrong = run.lost || run.head.error || "";
  $("error").hidden = !wrong; if ($("error").textContent !== wrong) $("error").textContent = wrong;
  const head = run.head, dead = [...run.tables.nodes.values()].filter((row) => row[1] === "DEAD").length;
  const cards = [["nodes alive", head.nodes, 0], ["nodes dead", dead, dead], ["running", head.running, 0], ["wait for a worker", (head.queued || 0) - (head.for_actors || 0), 0], ["wait for an actor", head.for_actors, 0], ["wait for arguments", head.blocked, 0], ["finished", head.finished, 0], ["failed", head.failed, head.failed]];
  $("cards").replaceChildren(...cards.map(([what, amount, bad]) => { const card = element("div", element("b", count(amount)), { className: "card" + (bad ? " bad" : "") }); card.append(element("span", what)); return card; }),
    (() => { const card = element("div", element("b", bytes(head.store || 0)), { className: "card" }); card.append(element("span", "in object stores")); return card; })());
  const groups = head.groups || [];
  if (groups.length) {
    const body = header($("groups"), ["group", "nodes", "starting", "leaving", "from - to", "why no node can start"]);
    for (const group of groups) { const row = element("tr"); for (const cell of [group.group, group.nodes, group.launching, group.leaving, `${group.min} - ${group.max}`, group.refused]) row.append(element("td", String(cell ?? ""))); body.append(row); }
  }
}
// All of the page shows the run at this time.
function clockWords(run) {
  const head = run.head;
  if (head.now_s === undefined) return "";
  if (head.source === "cluster") return `${time(head.now_s)} since the page's server joined` + (head.asked_s === undefined ? "" : `; the cluster's processes have answered within ${time(head.asked_s)}`);
  const behind = head.is_behind ? "; the page is behind the run, because no CPU of its machine is free" : "";
  if (!head.is_virtual) return `${time(head.now_s)} of real time${behind}`;
  const paced = head.state === "over" ? null : head.paced, pace = paced ? `, at most ${paced.pace} s of virtual time in a second` : "";
  return `${time(head.now_s)} of virtual time: a simulation${pace}` + (paced && paced.rests_s > 1 ? `; --pace holds the virtual clock here for ${paced.rests_s.toFixed(0)} s more` : "") + behind;
}
function whole() { return { from: 0, until: Math.max(...runs.map((run) => run.now)) * 1.01 }; }
function drawPictures() {
  const seen = view || whole();
  for (const run of runs) {
    drawTimeline(run.timeline, run, seen); drawDemand(run.demand, run, seen);
    run.timeline.setAttribute("aria-label", `Timeline of ${run.name}: ${count(run.bars.count)} attempts on ${count(run.bars.order.length)} workers in ${time(run.now)}, ${run.marks.length} fault${run.marks.length === 1 ? "" : "s"}. Arrow keys move, plus and minus zoom.`);
    run.demand.setAttribute("aria-label", `Demand and supply of ${run.name}: ${count(run.head.running)} tasks run and ${count(run.head.queued)} wait for a worker now, on ${count(run.head.nodes)} nodes.`);
  }
  const said = view ? `${time(view.from)} to ${time(view.until)}` : "";
  if ($("shown").textContent !== said) $("shown").textContent = said;
  const run = runs[chosen], named = [...run.colours], hasOthers = [...run.names.keys()].some((name) => !run.colours.has(name));
  const key = named.join() + hasOthers;
  if ($("legend").dataset.key === key) return;
  $("legend").dataset.key = key;
  const entry = (colour, name) => { const item = element("li"), dot = element("i"); dot.style.background = colour; item.append(dot, name); return item; };
  $("legend").replaceChildren(...named.map(([name, colour]) => entry(colour, name)), ...(hasOthers ? [entry(OTHERS, "other functions")] : []), entry("#d1242f", "lost with its worker or node"), entry("#7a0c14", "failed"),
    entry("repeating-linear-gradient(135deg,#4269d0 0 4px,#fff 4px 6px)", "done again"), entry("var(--dead)", "its node is dead"));
}
function drawHappened(run) {
  const rows = [...run.tables.happened.values()].sort((a, b) => a[1] - b[1] || a[0] - b[0]).slice(-200), list = $("happened"), atEnd = list.scrollTop + list.clientHeight >= list.scrollHeight - 8;
  const total = run.head.fault_cost ? `All faults${run.head.state === "over" ? "" : " until now"}: ${run.head.fault_cost}` : "";
  $("fault-cost").hidden = !total; if ($("fault-cost").textContent !== total) $("fault-cost").textContent = total;
  const key = rows.map((row) => row[0] + row[3] + row[5].length + row[6]).join() + run.head.state;
  if (list.dataset.follows && run.head.state === "over") {  // now the cause counts more than the newest sentence
    if (atEnd) list.scrollTop = 0;
    delete list.dataset.follows;
  }
  if (list.dataset.key === key && list.dataset.run === String(chosen)) return;
  list.dataset.key = key; list.dataset.run = chosen;
  const focused = list.contains(document.activeElement) && document.activeElement !== list ? document.activeElement : null;
  list.replaceChildren(...rows.map((row) => { const item = element("li", element("time", time(row[1]))); item.append(sentence(run, row)); return item; }));
  if (!rows.length) list.append(element("li", "No fault, no loss and no failure until now.", { className: "none" }));
  if (focused) [...list.querySelectorAll("button")].find((each) => each.title === focused.title && each.textContent === focused.textContent)?.focus({ preventScroll: true });
  if (atEnd && run.head.state === "running") {
    list.scrollTop = list.scrollHeight;
    list.dataset.follows = "yes";
  }
}
// A sentence, in which what it is about can be clicked; what it does not name stands behind it.
function sentence(run, row) {
  const said = element("span", null, { className: row[2] }), words = row[3], places = [], rest = [];
  for (const about of row[5] || []) {
    const at = placeOf(words, about[2], places);
    if (at < 0) rest.push(about); else places.push([at, about]);
  }
  places.sort((a, b) => a[0] - b[0]);
  let done = 0;
  for (const [at, about] of places) { said.append(words.slice(done, at), linkTo(about)); done = at + about[2].length; }
  said.append(words.slice(done));
  if (row[6]) said.append(element("span", `Cost${run.head.state === "over" ? "" : " until now"}: ${row[6]}`, { className: "cost" }));
  if (rest.length) { const behind = element("span", null, { className: "about" }); for (const about of rest) behind.append(" ", linkTo(about)); said.append(behind); }
  return said;
}
function placeOf(words, name, taken) {
  for (let at = words.indexOf(name); at >= 0 && name; at = words.indexOf(name, at + 1)) {
    const before = words[at - 1] || " ", after = words.slice(at + name.length);
    if (!/[\w./~-]/.test(before) && !/^([\w/~-]|\.\w)/.test(after) && !taken.some(([other]) => other === at)) return at;
  }
  return -1;
}
function linkTo([kind, key, name]) {
  if (kind === "more") return element("span", name);
  const button = element("button", name, { className: "link", title: kind === "lost" ? `The attempts that were lost on ${key}` : key });
  button.addEventListener("click", () => kind === "lost" ? showLost(key) : open(kind, key));
  return button;
}
function showLost(node) {
  if ($("detail").open) $("detail").close();
  showTab("spans"); wantedState = "LOST_ATTEMPT"; $("search").value = searchOfLink = node; listDirty = true;
  $("things").scrollIntoView(); $("panel").focus({ preventScroll: true });
}
function drawWaits(run) {
  const rows = [...run.tables.waits.values()].sort((a, b) => b[1] - a[1]).slice(0, 50);
  $("waits").replaceChildren(...rows.map((row) => { const item = element("li", element("b", `${count(row[1])} ×`)); item.append(element("span", `${row[0]} (the first for ${time(Math.max(0, run.now - row[2]))})`)); return item; }));
  const unknown = run.head.knows_head && rows.length ? [...run.tables.nodes.values()].filter((row) => row[1] === "DEAD" && row[12] === null).map((row) => row[0]) : [];
  if (unknown.length) $("waits").prepend(element("li", `The head has not detected yet that ${unknown.slice(0, 5).join(", ")}${unknown.length > 5 ? " and others" : ""} ${unknown.length > 1 ? "are" : "is"} dead. If work was sent there, or needs an object from there, it waits until the head detects the death.`, { className: "note" }));
  if (!rows.length) $("waits").append(element("li", run.head.state === "over" ? "Nothing waited at the end." : "Nothing waits.", { className: "none" }));
}
function drawNodes(run) {
  const rows = [...run.tables.nodes.values()].sort((a, b) => natural(a[0], b[0])), hasMemory = rows.some((row) => row[4] !== null), measured = rows.some((row) => row[11]);
  const focused = $("nodes").contains(document.activeElement) ? document.activeElement.dataset.id : null;
  const body = header($("nodes"), ["node", "state", run.head.source === "cluster" ? "CPUs in use" : "tasks running", ...(hasMemory ? ["memory reserved"] : []), "object store", ...(measured ? ["measured"] : []), "alive or dead since"]);
  if (rows.length > 500) rows.sort((a, b) => BAD.has(b[1]) - BAD.has(a[1]));
  for (const row of rows.slice(0, 500)) {
    const line = element("tr"), cpus = row[2], name = element("button", row[0], { className: "id" }); name.dataset.id = row[0];
    name.addEventListener("click", () => open("nodes", row[0]));
    line.append(element("th", name, { scope: "row" }), element("td", words(row[1]), { className: stateClass(row[1]) }));
    line.append(meter(row[3], cpus, cpus === null ? `${row[3]} tasks run` : run.head.source === "cluster" ? `${count(row[3])} of ${count(cpus)}` : `${count(row[3])} on ${count(cpus)} CPU${cpus === 1 ? "" : "s"}`));
    if (hasMemory) { const reserved = meter(row[5] || 0, row[4], row[4] === null ? "" : `${bytes(row[5] || 0)} of ${bytes(row[4])}`); reserved.dataset.label = "memory reserved"; line.append(reserved); }
    const stored = meter(row[7], row[6], row[6] === null ? bytes(row[7]) : `${bytes(row[7])} of ${bytes(row[6])}`), since = element("td", sinceWords(run, row));
    stored.dataset.label = "object store"; if (row[1] !== "DEAD") since.dataset.label = "alive since";
    line.append(stored);
    if (measured) line.append(element("td", row[11] || ""));
    line.append(since); for (const cell of line.children) cell.setAttribute("role", cell.tagName === "TH" ? "rowheader" : "cell");
    line.setAttribute("role", "row");
    body.append(line);
  }
  if (rows.length > 500) body.append(element("tr", element("td", `and ${count(rows.length - 500)} more`, { colSpan: 7 })));
  if (focused) [...body.querySelectorAll("button")].find((each) => each.dataset.id === focused)?.focus();
}
function sinceWords(run, row) {
  const life = row[10] ? ` (life ${row[10] + 1})` : "";
  if (row[1] !== "DEAD" || row[9] === null) return (row[8] ? time(row[8]) : "the start") + life;
  return `dead since ${time(row[9])}` + (row[12] === null ? (run.head.knows_head ? ", but the head has not detected this yet" : "") : row[12] > row[9] ? `; the head detected this at ${time(row[12])}` : "") + life;
}
function drawComparison() {
  const body = header($("comparison"), ["figure", ...runs.map((run) => run.name)]);
  const line = (what, value) => { const row = element("tr", element("th", what, { scope: "row" })); for (const run of runs) row.append(element("td", value(run))); body.append(row); };
  line("state", (run) => STATES[run.head.state] || ""); line("time", (run) => time(run.head.now_s)); line("nodes alive", (run) => count(run.head.nodes));
  line("tasks finished", (run) => `${count(run.head.finished)} of ${count(run.head.tasks)}`); line("failed", (run) => count(run.head.failed));
  line("attempts lost", (run) => count([...run.tables.spans.values()].filter((row) => row[6] === "lost").length));
  line("attempts done again", (run) => count([...run.tables.spans.values()].filter((row) => row[7]).length)); line("faults", (run) => count(run.marks.length));
}

// ---- The list -------------------------------------------------------------------------------------------------------

function matching(run) {
  const wanted = $("search").value.trim().toLowerCase().split(/\s+/).filter(Boolean), state = wantedState, found = [], counts = new Map();
  for (const row of run.tables[tab].values()) {
    const its = stateOf(tab, row);
    counts.set(its, (counts.get(its) || 0) + 1);
    if (state && its !== state) continue;
    let holds = true;
    if (wanted.length && row.text === undefined) row.text = text(tab, row);
    for (const word of wanted) if (!row.text.includes(word)) { holds = false; break; }
    if (holds) found.push(row);
  }
  stateCounts = counts;
  if (sortBy !== null) {
    const value = (row) => cellValue(row, sortBy);
    found.sort((a, b) => { const x = value(a), y = value(b); const way = x === y ? 0 : x === null || x === "" ? 1 : y === null || y === "" ? -1 : typeof x === "number" ? x - y : natural(String(x), String(y)); return sortDown ? -way : way; });
  }
  return found;
}
function cellValue(row, column) {
  const from = tab === "spans" ? 4 : 9;
  if (column === "lasted") return row[from] === null ? null : (row[from + 1] ?? runs[chosen].now) - row[from];
  return COLUMNS[tab][column] === "state" ? words(stateOf(tab, row)) : Array.isArray(row[column]) ? row[column].join(", ") : row[column];
}
function drawList() {
  const run = runs[chosen], began = performance.now(), rows = matching(run), columns = SHOWN[tab], table = $("list");
  page = Math.max(0, Math.min(page, Math.ceil(rows.length / PAGE) - 1));
  const head = element("tr");
  for (const column of columns) {
    const name = column === "lasted" ? "lasted" : COLUMNS[tab][column], cell = element("th", null, { scope: "col" });
    if (sortBy === column) cell.setAttribute("aria-sort", sortDown ? "descending" : "ascending");
    const button = element("button", name + (sortBy === column ? (sortDown ? " \u2193" : " \u2191") : ""));
    button.addEventListener("click", () => { sortDown = sortBy === column && !sortDown; sortBy = column; listDirty = true; });
    cell.append(button); head.append(cell);
  }
  const body = element("tbody");
  for (const row of rows.slice(page * PAGE, page * PAGE + PAGE)) {
    const line = element("tr");
    for (const column of columns) line.append(cell(row, column));
    body.append(line);
  }
  const focused = table.contains(document.activeElement) ? document.activeElement.dataset.id || document.activeElement.textContent : null;
  table.replaceChildren(element("thead", head), body);
  if (focused) [...table.querySelectorAll("button")].find((each) => (each.dataset.id || each.textContent).replace(/ [\u2191\u2193]/, "") === focused.replace(/ [\u2191\u2193]/, ""))?.focus();
  const total = run.tables[tab].size, dropped = run.dropped[tab], first = rows.length ? page * PAGE + 1 : 0;
  const noun = total === 1 ? TABS[tab].toLowerCase().replace(/s$/, "") : TABS[tab].toLowerCase();
  $("found").textContent = (rows.length === total ? `${count(total)} ${noun}` : `${count(rows.length)} of ${count(total)} ${TABS[tab].toLowerCase()}`) + (rows.length > PAGE ? `, ${count(first)} to ${count(Math.min(rows.length, first + PAGE - 1))} shown` : "") + (dropped ? `; ${count(dropped)} earlier ones are not kept` : "");
  $("pages").hidden = rows.length <= PAGE; $("previous").disabled = page === 0; $("next").disabled = (page + 1) * PAGE >= rows.length;
  fillFilter();
  table.dataset.tookMs = String(performance.now() - began);
}
function cell(row, column) {
  const value = cellValue(row, column), name = COLUMNS[tab][column];
  const idColumn = tab === "spans" ? 1 : 0;
  if (column === idColumn) { const button = element("button", tab === "workers" ? value : value.slice(0, 12), { className: "id", title: value }); button.dataset.id = row[0]; button.addEventListener("click", () => open(tab === "spans" ? "tasks" : tab, row[idColumn])); return element("td", button); }
  if (column === "lasted" || ["submitted", "started", "ended"].includes(name)) return element("td", time(value));
  if (name === "size") return element("td", bytes(value));
  if (name === "state") {
    const its = stateOf(tab, row);
    if (tab === "tasks" && row[13]) return element("td", `${row[13]}, since ${time(row[14])}`, { className: "words" });
    return element("td", tab === "spans" && its === "FAILED" ? `failed: ${row[6]}` : words(its), { className: stateClass(its) });
  }
  if (["error", "reason", "held by", "runs"].includes(name)) return element("td", String(value ?? ""), { className: "words" });
  return element("td", name === "kind" ? words(value) : String(value ?? ""));
}
function fillFilter() {
  const states = [...stateCounts.keys()].filter(Boolean).sort(), key = tab + wantedState + states.map((each) => each + stateCounts.get(each)).join();
  if (tabState === key) return;
  tabState = key;
  $("filter").replaceChildren(element("option", "all", { value: "" }), ...states.map((each) => element("option", `${words(each)} (${count(stateCounts.get(each))})`, { value: each })));
  if (wantedState && !stateCounts.has(wantedState)) $("filter").append(element("option", `${words(wantedState)} (0)`, { value: wantedState }));
  $("filter").value = wantedState;
}
function showTab(name) {
  if (searchOfLink !== null && $("search").value === searchOfLink) $("search").value = "";  // a link had put it there
  searchOfLink = null; tab = name; page = 0; sortBy = null; tabState = ""; wantedState = ""; $("filter").replaceChildren(element("option", "all", { value: "" }));
  for (const button of $("tabs").children) { const is = button.id === "tab-" + name; button.setAttribute("aria-selected", is); button.tabIndex = is ? 0 : -1; }
  $("panel").setAttribute("aria-labelledby", "tab-" + name);
  const isLog = name === "logs";
  for (const id of ["tools", "pages"]) $(id).hidden = isLog;
  $("tools").style.display = isLog ? "none" : ""; $("list").parentElement.hidden = isLog; $("log").hidden = !isLog;
  if (isLog) listLogs(); else listDirty = true;
}

// ---- Logs -----------------------------------------------------------------------------------------------------------

async function listLogs() {
  $("log-note").textContent = "reading ...";
  try {
    const { files } = await ask(`/api/${chosen}/logs`), select = $("log-file"), kept = select.value;
    select.replaceChildren(...files.map((file) => element("option", file.node ? `${file.node}: ${file.name}` : file.name, { value: JSON.stringify(file) })));
    if (files.some((file) => JSON.stringify(file) === kept)) select.value = kept;
    if (files.length) await readLog();
    else { $("log-text").textContent = ""; $("log-note").textContent = "There are no log files. A simulation has none. For a real run, keep the files with init(log_directory=DIR), and pass the directory to dualray dashboard --logs DIR."; }
  } catch (error) { $("log-note").textContent = error.message; }
}
async function readLog() {
  const file = JSON.parse($("log-file").value || "{}");
  try {
    const found = await ask(`/api/${chosen}/log?name=${encodeURIComponent(file.name)}&node=${encodeURIComponent(file.node)}`);
    $("log-text").textContent = found.text; $("log-note").textContent = found.text ? "the last lines" : "it is empty"; $("log-text").scrollTop = $("log-text").scrollHeight;
  } catch (error) { $("log-note").textContent = error.message; }
}

// ---- One thing ------------------------------------------------------------------------------------------------------

let shown = null;
async function open(kind, key) {
  const run = runs[chosen];
  if (!run.tables[kind]?.get(key)) return;
  shown = { run, kind, key, drawn: "", told: "", isAsked: false, isWhole: true, askAgainAt: Infinity };
  $("detail-links").replaceChildren(); $("detail-story").replaceChildren(); $("detail-story-title").hidden = true;
  drawDetail();
  if (!$("detail").open) $("detail").showModal();
  $("detail").scrollTop = 0;
  await tell();
}
// Asks for the history of the thing that is shown. Of a run that goes on the dialog asks again, the later the longer the answer takes.
async function tell() {
  const mine = shown, { run, kind, key } = mine, title = $("detail-story-title"), began = performance.now();
  if (kind !== "tasks" && kind !== "objects") return;
  mine.askAgainAt = Infinity; mine.isAsked = true; mine.isWhole = run.head.state === "over";
  try {
    const story = await ask(`/api/${run.number}/story?id=${encodeURIComponent(key)}`);
    if (shown !== mine) return;
    title.hidden = false; title.textContent = run.head.state === "over" ? "Its history" : `Its history until ${time(story.now_s)}`;
    const told = JSON.stringify(story.lines);
    if (told !== mine.told) $("detail-story").replaceChildren(...story.lines.map(([when, said, details]) => { const item = element("li", element("time", time(when))); item.append(" " + said); if (details.length) { const inner = element("ul"); inner.append(...details.map((each) => element("li", each))); item.append(inner); } return item; }));
    mine.told = told;
  } catch (error) { if (shown === mine) { title.hidden = false; title.textContent = "Its history"; $("detail-story").replaceChildren(element("li", error.message)); } }
  const now = performance.now();
  mine.isAsked = false; mine.askAgainAt = now + Math.max(2000, 50 * (now - began));
}
// Draws the fields and links again when they have changed: the dialog shows the moment that the page shows.
function drawDetail() {
  if (!shown) return;
  const { run, kind, key } = shown, row = run.tables[kind].get(key), moment = `${run.version} ${run.now} ${run.head.state}`;
  if (!row || shown.moment === moment) return;
  shown.moment = moment;
  if (!shown.isAsked && !shown.isWhole && (run.head.state === "over" || performance.now() > shown.askAgainAt)) tell();
  const { title, fields, links } = { tasks: ofTask, actors: ofActor, objects: ofObject, workers: ofWorker, nodes: ofNode }[kind](run, row);
  const drawn = JSON.stringify([title, fields, links]);
  if (drawn === shown.drawn) return;
  shown.drawn = drawn;
  const at = [...$("detail-links").querySelectorAll("button")].indexOf(document.activeElement);
  $("detail-title").textContent = title; $("detail-id").textContent = key;
  $("detail-fields").replaceChildren(...fields.filter(([, value]) => value !== null && value !== undefined && value !== "").flatMap(([name, value]) => [element("dt", name), element("dd", String(value))]));
  $("detail-links").replaceChildren(...links.flatMap(([group, abouts]) => abouts.length ? [element("h3", group), ...abouts.map(linkTo)] : []));
  if (at >= 0) $("detail-links").querySelectorAll("button")[at]?.focus();
}
const LINKS_MAX = 20;
function fieldsOf(kind, row) {
  return COLUMNS[kind].map((name, at) => {
    const value = row[at];
    if (at === 0 || (Array.isArray(value) && !value.length)) return [name, null];
    if (["submitted", "started", "ended", "since"].includes(name)) return [name, time(value)];
    return [name, name === "size" ? bytes(value) : name === "state" ? words(stateOf(kind, row)) : Array.isArray(value) ? value.join(", ") : words(value)];
  });
}
function ofTask(run, row) {
  const tables = run.tables, waits = [], places = [], made = [], attempts = [];
  for (const dep of row[12].slice(0, LINKS_MAX)) { const maker = tables.tasks.get(dep.slice(0, 32)); if (maker) waits.push(["tasks", maker[0], `${maker[1]} ${maker[0].slice(0, 8)} (${words(stateOf("tasks", maker))})`]); }
  if (row[15] && row[15] !== row[0] && tables.actors.has(row[15])) places.push(["actors", row[15], `its actor ${actorName(tables.actors.get(row[15]))}`]);
  if (tables.actors.has(row[0])) places.push(["actors", row[0], "the actor that it creates"]);
  if (tables.workers.has(row[6])) places.push(["workers", row[6], `worker ${row[6]}`]);
  if (tables.nodes.has(row[7])) places.push(["nodes", row[7], row[7]]);
  for (const each of tables.objects.keys()) if (each.startsWith(row[0])) { made.push(["objects", each, `object of ${bytes(tables.objects.get(each)[1])} (${words(tables.objects.get(each)[2])})`]); if (made.length > LINKS_MAX) break; }
  for (let number = 0; number <= row[4] && number < LINKS_MAX; number++) { const span = tables.spans.get(`${row[0]}:${number}`); if (span && span[4] !== null) attempts.push(`attempt ${number} on ${span[3]}, ${time(span[4])} to ${span[5] === null ? "now" : time(span[5])}: ${span[6] === "lost" ? "lost with its worker or node" : span[6] || (span[5] === null ? "running" : "finished")}`); }
  return { title: `${row[1] || "A task"}, task`, fields: [...fieldsOf("tasks", row).filter(([name]) => !["waits for objects", "actor", "worker", "node"].includes(name)), ["attempts", attempts.join("; ")]], links: [["Where", places], ["Waits for the results of", waits], ["Made", made]] };
}
function actorName(row) { return row[2] ? `${row[1]} "${row[2]}"` : row[1]; }
function ofActor(run, row) {
  const calls = [], tables = run.tables; let waiting = 0;
  for (const task of tables.tasks.values()) if (task[15] === row[0] && task[0] !== row[0] && task[3] !== "FINISHED" && task[3] !== "FAILED") { if (task[3] !== "RUNNING") waiting++; if (calls.length < LINKS_MAX) calls.push(["tasks", task[0], `${task[1]} ${task[0].slice(0, 8)} (${words(stateOf("tasks", task))})`]); }
  const places = [tables.workers.has(row[5]) && ["workers", row[5], `worker ${row[5]}`], tables.nodes.has(row[4]) && ["nodes", row[4], row[4]], tables.tasks.has(row[0]) && ["tasks", row[0], "the task that created it"]].filter(Boolean);
  return { title: `${actorName(row)}, actor`, fields: [...fieldsOf("actors", row), ["calls that wait", waiting ? count(waiting) : ""]], links: [["Where", places], ["Its calls that have not ended", calls]] };
}
function ofObject(run, row) {
  const links = [], maker = run.tables.tasks.get(row[0].slice(0, 32));
  if (maker) links.push(["tasks", maker[0], `the task that computed it: ${maker[1]}`]);
  for (const node of row[4]) if (run.tables.nodes.has(node)) links.push(["nodes", node, node]);
  return { title: `Object ${row[6]}`, fields: fieldsOf("objects", row), links: [["Where", links]] };
}
function ofWorker(run, row) {
  const links = [];
  if (run.tables.tasks.has(row[5])) links.push(["tasks", row[5], `runs ${row[4]}`]);
  if (run.tables.nodes.has(row[1])) links.push(["nodes", row[1], row[1]]);
  return { title: `Worker ${row[0]}`, fields: fieldsOf("workers", row).filter(([name]) => name !== "task"), links: [["Where", links]] };
}
// State, since when, why it ended, what ran there, what was lost there.
function ofNode(run, row) {
  const [name, state, , , , , , , started, ended, lives, , noticed, why, lost] = row, tables = run.tables, ran = new Map(), losses = [], running = []; let lostCount = 0;
  for (const span of tables.spans.values()) {
    if (span[4] === null || span[3].split("/")[0].split("~")[0] !== name) continue;
    const its = stateOf("spans", span), counts = ran.get(span[8]) || {};
    counts[its] = (counts[its] || 0) + 1; ran.set(span[8], counts);
    if (its === "LOST_ATTEMPT") { lostCount++; if (losses.length < LINKS_MAX) losses.push(["tasks", span[1], `${span[8]} ${span[1].slice(0, 8)}`]); }
    if (its === "RUNNING" && running.length < LINKS_MAX) running.push(["tasks", span[1], `${span[8]} ${span[1].slice(0, 8)}`]);
  }
  if (lostCount > losses.length) losses.push(["lost", name, `all ${count(lostCount)} lost attempts`]);
  const list = [...ran].map(([what, counts]) => `${what}: ${Object.entries(counts).map(([its, amount]) => `${count(amount)} ${words(its)}`).join(", ")}`).join("; ");
  const objects = (lost || [0]).slice(1).map((each) => { const known = tables.objects.get(each); return known && ["objects", each, `${known[6]}, ${bytes(known[1])} (now ${words(known[2])})`]; }).filter(Boolean);
  const actors = [...tables.actors.values()].filter((actor) => actor[4] === name).slice(0, LINKS_MAX).map((actor) => ["actors", actor[0], `${actorName(actor)} (${words(actor[3])})`]);
  const workers = [...tables.workers.values()].filter((worker) => worker[1] === name && worker[2] !== "driver").slice(0, LINKS_MAX).map((worker) => ["workers", worker[0], `${worker[0]} (${words(worker[3])})`]);
  const isDead = state === "DEAD" && ended !== null;
  return {
    title: `${name}, node`,
    fields: [["state", words(state)], ["since", time(isDead ? ended : started)], ["joined", isDead ? time(started) : ""], ["incarnation", lives ? `${lives + 1}, after ${lives} restart${lives > 1 ? "s" : ""}` : ""], ["why it ended", isDead ? why : ""],
      ["the head detected it", !isDead ? "" : noticed !== null ? `at ${time(noticed)}${noticed > ended ? `, ${time(noticed - ended)} later` : ""}` : run.head.knows_head ? "not yet" : ""],
      ["CPUs in use", row[2] === null ? `${row[3]} tasks run` : `${count(row[3])} of ${count(row[2])}`], ["object store", row[6] === null ? bytes(row[7]) : `${bytes(row[7])} of ${bytes(row[6])}`], ["measured", row[11]],
      ["what ran there", list || "nothing"], ["attempts lost there", lostCount ? count(lostCount) : "none"], ["objects lost there", lost && lost[0] ? `${count(lost[0])}: their only copies were there` : "none whose only copy was there"]],
    links: [["Lost attempts", losses], ["Lost objects", objects], ["Runs there now", running], ["Actors there", actors], ["Workers", workers]],
  };
}

// ---- Time -----------------------------------------------------------------------------------------------------------

function zoom(factor, at) { const seen = view || whole(), middle = at ?? (seen.from + seen.until) / 2; setView(middle - (middle - seen.from) * factor, middle + (seen.until - middle) * factor); }
function move(share) { const seen = view || whole(), by = (seen.until - seen.from) * share; setView(seen.from + by, seen.until + by); }
function setView(from, until) {
  const all = whole(), span = Math.max(1e-6, Math.min(until - from, all.until));
  if (span >= all.until * .999) view = null;
  else { const start = Math.max(0, Math.min(from, all.until - span)); view = { from: start, until: start + span }; }
  dirty = true;
}
function makeCanvases(run) {
  const place = (id, kind, draggable) => {
    const canvas = element("canvas", null, { className: kind, tabIndex: 0, id: `${kind}-${run.number}` });
    canvas.setAttribute("role", "img"); canvas.setAttribute("aria-label", kind);
    if (runs.length > 1) $(id).append(element("p", run.name, { className: "run-name" }));
    $(id).append(canvas);
    canvas.addEventListener("keydown", (event) => {
      const done = { ArrowLeft: () => move(-.2), ArrowRight: () => move(.2), "+": () => zoom(.5), "=": () => zoom(.5), "-": () => zoom(2), Home: () => { view = null; dirty = true; } }[event.key];
      if (done) { done(); event.preventDefault(); }
    });
    canvas.addEventListener("wheel", (event) => {
      if (event.ctrlKey && run.timeline.geometry) { zoom(event.deltaY > 0 ? 1.25 : .8, timeAt(run.timeline, event.offsetX)); event.preventDefault(); }
    }, { passive: false });
    if (draggable) drag(canvas, run);
    return canvas;
  };
  run.timeline = place("timelines", "timeline", true); run.demand = place("demands", "demand", false);
}
function drag(canvas, run) {
  let from = null, moved = 0;
  canvas.addEventListener("pointerdown", (event) => { from = event.clientX; moved = 0; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => {
    if (from !== null) { const by = event.clientX - from; moved += Math.abs(by); from = event.clientX; if (moved > 3) { const seen = view || whole(), s = -by * perPixel(canvas); setView(seen.from + s, seen.until + s); } return; }
    const key = barAt(canvas, run, event.offsetX, event.offsetY), tip = $("tip");
    tip.hidden = !key; if (!key) return;
    const span = run.tables.spans.get(key);
    tip.textContent = `${span[8]} on ${span[3]}\n${time(span[4])}, ${time((span[5] ?? run.now) - span[4])}${span[5] === null ? " until now" : ""}${span[6] ? "\n" + span[6] : ""}${span[7] ? "\nagain: " + span[7] : ""}`;
    tip.style.left = Math.min(event.clientX + 14, innerWidth - 350) + "px"; tip.style.top = event.clientY + 16 + "px";
  });
  canvas.addEventListener("pointerleave", () => { $("tip").hidden = true; });
  canvas.addEventListener("pointerup", (event) => {
    from = null;
    if (moved > 3) return;
    const key = barAt(canvas, run, event.offsetX, event.offsetY);
    if (key) { choose(run.number); $("tip").hidden = true; open("tasks", run.tables.spans.get(key)[1]); }
  });
}

// ---- Start ----------------------------------------------------------------------------------------------------------

function choose(number) { chosen = number; [...$("runs").children].forEach((button, at) => button.setAttribute("aria-pressed", at === number)); dirty = listDirty = true; if (tab === "logs") listLogs(); }
async function begin() {
  for (const [name, label] of Object.entries(TABS)) {
    const button = element("button", label, { id: "tab-" + name }); button.setAttribute("role", "tab"); button.setAttribute("aria-controls", "panel");
    button.addEventListener("click", () => showTab(name));
    button.addEventListener("keydown", (event) => { const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key]; if (!way) return; const all = [...$("tabs").children], next = all[(all.indexOf(button) + way + all.length) % all.length]; next.focus(); next.click(); });
    $("tabs").append(button);
  }
  showTab("tasks");
  $("search").addEventListener("input", () => { page = 0; listDirty = true; }); $("filter").addEventListener("change", () => { page = 0; wantedState = $("filter").value; listDirty = true; });
  $("previous").addEventListener("click", () => { page--; listDirty = true; }); $("next").addEventListener("click", () => { page++; listDirty = true; });
  $("zoom-in").addEventListener("click", () => zoom(.5)); $("zoom-out").addEventListener("click", () => zoom(2)); $("earlier").addEventListener("click", () => move(-.3)); $("later").addEventListener("click", () => move(.3)); $("whole").addEventListener("click", () => { view = null; dirty = true; });
  $("log-file").addEventListener("change", readLog); $("log-again").addEventListener("click", listLogs);
  document.addEventListener("keydown", (event) => { if (event.key === "/" && !/INPUT|SELECT/.test(event.target.tagName) && !$("detail").open) { event.preventDefault(); if (tab === "logs") showTab("tasks"); $("search").focus(); } });
  $("detail").addEventListener("close", () => { shown = null; });
  addEventListener("resize", () => { dirty = true; }); matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { dirty = true; });
  let sources;
  try { sources = await ask("/api/sources"); } catch (error) { $("state").textContent = "not connected"; $("error").hidden = false; $("error").textContent = error.message; return; }
  sources.forEach((source, number) => runs.push(newRun(number, source.name)));
  for (const run of runs) makeCanvases(run);
  if (runs.length > 1) {
    $("runs").hidden = $("compare").hidden = false;
    $("runs").append(...runs.map((run, at) => { const button = element("button", run.name); button.addEventListener("click", () => choose(at)); return button; }));
  }
  choose(0); for (const run of runs) follow(run);
  draw();
  // For tests and measurements: what the page holds, and how long its last frame and its last list took.
  window.dualray = { runs, frame: () => { const began = performance.now(); drawPictures(); return performance.now() - began; }, filter: () => { const began = performance.now(); drawList(); return performance.now() - began; } };
}
begin();
