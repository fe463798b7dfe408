"use strict";
// Shows what the page carries in #run: zooms the charts of time together, and tells a task's history when it is clicked.
const run = JSON.parse(document.getElementById("run").textContent);
const byId = (id) => document.getElementById(id);
const CHARTS = { gantt: [drawGantt, hitGantt], path: [drawStrip, hitStrip], usage: [drawUsage, hitUsage] };
const timed = Object.keys(CHARTS).filter((name) => run.figures[name]);
let view = run.span.slice();

function draw(name) { CHARTS[name][0](byId(name), run.figures[name], view, run.unit, run.span); }
function drawAll() { timed.forEach(draw); }

function showRange(from, until) {
  const whole = run.span[1] - run.span[0], span = Math.min(Math.max(until - from, whole * 1e-7), whole);
  const start = Math.min(Math.max(from, run.span[0]), run.span[1] - span);
  view = [start, start + span];
  drawAll();
}

function zoomTo(from, until) {
  const margin = (until - from) * 0.05;
  showRange(from - margin, until + margin);
}

function zoomBy(factor, at) { showRange(at - (at - view[0]) * factor, at + (view[1] - at) * factor); }

// ---- Pointer and keys -------------------------------------------------------------------------------------------

function attach(name) {
  const canvas = byId(name), mark = canvas.nextElementSibling;
  let from = null;
  const place = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  const hit = (event) => CHARTS[name][1](canvas, run.figures[name], view, run.unit, ...place(event), run.span);
  canvas.addEventListener("pointerdown", (event) => { if (event.button === 0) { from = place(event)[0]; canvas.setPointerCapture(event.pointerId); } });
  canvas.addEventListener("pointermove", (event) => {
    const x = place(event)[0];
    if (from !== null && Math.abs(x - from) > 4) {
      mark.hidden = false; mark.style.left = Math.min(x, from) + "px"; mark.style.width = Math.abs(x - from) + "px";
      hideTip();
    } else showTip(hit(event), event);
  });
  canvas.addEventListener("pointerup", (event) => {
    const x = place(event)[0], begun = from;
    from = null; mark.hidden = true;
    if (begun === null) return;
    if (Math.abs(x - begun) > 4) {
      const [left, right] = [Math.min(x, begun), Math.max(x, begun)].map((each) => timeOf(canvas.frame, view, each));
      showRange(left, right);
    } else { const found = hit(event); if (found && found.task) tell(found.task); }
  });
  canvas.addEventListener("pointercancel", () => { from = null; mark.hidden = true; });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("dblclick", () => showRange(...run.span));
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoomBy(event.deltaY > 0 ? 1.25 : 0.8, timeOf(canvas.frame, view, place(event)[0]));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const span = view[1] - view[0], middle = (view[0] + view[1]) / 2;
    if (event.key === "ArrowLeft") showRange(view[0] - span / 5, view[1] - span / 5);
    else if (event.key === "ArrowRight") showRange(view[0] + span / 5, view[1] + span / 5);
    else if (event.key === "+" || event.key === "=") zoomBy(0.5, middle);
    else if (event.key === "-") zoomBy(2, middle);
    else if (event.key === "0" || event.key === "Home") showRange(...run.span);
    else return;
    event.preventDefault();
  });
}

function showTip(found, event) {
  const tip = byId("tip");
  if (!found) { hideTip(); return; }
  tip.replaceChildren(...found.lines.filter(Boolean).map((line, at) => element(at ? "span" : "b", line)));
  tip.hidden = false;
  const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
  tip.style.left = Math.max(4, left) + "px"; tip.style.top = Math.min(event.clientY + 16, window.innerHeight - tip.offsetHeight - 8) + "px";
}
function hideTip() { byId("tip").hidden = true; }

// ---- Legends and shares -----------------------------------------------------------------------------------------

function legend(id, entries) {
  byId(id).append(...entries.map(([name, colour]) => {
    const item = element("li"), swatch = element("i");
    swatch.style.background = colour;
    item.append(swatch, element("span", name));
    return item;
  }));
}

/** One bar of 100 % for each row, its parts by kind. */
function drawShares() {
  const { kinds, rows } = run.figures.where;
  const used = kinds.filter((_, kind) => rows.some(([, , parts]) => parts[kind] > 0));
  legend("where-legend", used);
  byId("where").append(...rows.map(([name, unit, parts], row) => {
    const line = element("div", "", "share"), bar = element("div", "", "bar"), total = parts.reduce((sum, each) => sum + each, 0);
    parts.forEach((part, kind) => {
      if (!part || !total) return;
      const share = 100 * part / total, piece = element("span", share >= 6 ? share.toFixed(0) + " %" : "");
      piece.style.width = share + "%"; piece.style.background = kinds[kind][1]; piece.style.color = readableOn(kinds[kind][1]);
      piece.title = name + ": " + kinds[kind][0] + " " + share.toFixed(1) + " %, " + Number(part.toPrecision(4)) + " of " + Number(total.toPrecision(4)) + " " + unit;
      bar.append(piece);
    });
    line.append(element(row < 2 ? "b" : "span", name), bar);
    return line;
  }));
}

/** Black or white, whichever has more contrast: the luminance is that of WCAG. */
function readableOn(hex) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255).map((c) => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b > .18 ? "#101418" : "#ffffff";
}
/** A section that scrolls sideways on a narrow window can be reached, and then scrolled, with the keyboard. */
function markScrolling() {
  for (const section of document.querySelectorAll("main > section")) {
    const scrolls = section.scrollWidth > section.clientWidth;
    section.tabIndex = scrolls ? 0 : -1;
    if (scrolls) { section.setAttribute("role", "region"); section.setAttribute("aria-label", section.querySelector("h2").textContent); }
    else { section.removeAttribute("role"); section.removeAttribute("aria-label"); section.removeAttribute("tabindex"); }
  }
}

// ---- Histories --------------------------------------------------------------------------------------------------

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function tell(id) {
  const story = run.stories[id];
  byId("title").textContent = story ? story.title : "Task " + id.slice(0, 8);
  byId("id").textContent = id;
  const lines = byId("lines");
  lines.replaceChildren();
  if (!story) {
    const item = element("li");
    item.append(element("span", "This page has the histories of " + Object.keys(run.stories).length +
      " tasks and objects. To print the history of this one, run: "), element("code", "dualray explain " + id.slice(0, 12) + run.where));
    lines.append(item);
  }
  for (const [when, text, details] of story ? story.lines : []) {
    const item = element("li");
    if (when) item.append(element("time", when));
    item.append(element("span", text));
    if (details.length) {
      const list = element("ul");
      for (const each of details) list.append(element("li", each));
      // A list within the list carries no dots of the story's own.
      list.querySelectorAll("li").forEach((each) => each.classList.add("detail"));
      item.append(list);
    }
    lines.append(item);
  }
  byId("story").classList.add("open");
}

function hush() {
  byId("story").classList.remove("open");
}

function search(text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) { byId("found").textContent = ""; return; }
  const hits = run.index.filter(([id, name]) => id.startsWith(wanted) || name.toLowerCase().includes(wanted));
  byId("found").textContent = hits.length === 1 ? "1 found" : hits.length.toLocaleString("en") + " found" +
    (hits.length > 1 ? "; the first is shown" : "");
  if (hits.length) tell(hits[0][0]); else hush();
}

function begin() {
  timed.forEach(attach);
  legend("functions", run.figures.gantt.functions);
  legend("path-legend", run.figures.path.kinds);
  drawShares();
  drawAll();
  window.addEventListener("resize", drawAll);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  byId("search").addEventListener("change", (event) => search(event.target.value));
  byId("reset").addEventListener("click", () => showRange(...run.span));
  document.querySelectorAll("button.span").forEach((button) => button.addEventListener("click", () =>
    zoomTo(Number(button.dataset.from), Number(button.dataset.until))));
  byId("close").addEventListener("click", hush);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hush(); });
  document.querySelectorAll("tr[data-task]").forEach((row) => {
    row.tabIndex = 0;
    row.addEventListener("click", () => tell(row.dataset.task));
    row.addEventListener("keydown", (event) => { if (event.key === "Enter") tell(row.dataset.task); });
  });
  markScrolling();
  window.addEventListener("resize", markScrolling);
  document.body.dataset.drawn = "yes";
}

begin();
