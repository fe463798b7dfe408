"use strict";
// Draws what the page carries in #run, zooms the charts of time together, and tells a task's story when it is clicked.
const run = JSON.parse(document.getElementById("run").textContent);
const byId = (id) => document.getElementById(id);
const config = { displaylogo: false, displayModeBar: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
const timed = ["gantt", "path", "usage"].filter((name) => run.figures[name]);
let zooming = false;

function timeAxes(div) {
  return Object.keys(div.layout).filter((key) => /^xaxis\d*$/.test(key));
}

function zoomOthers(from, range) {
  if (zooming) return;
  zooming = true;
  const others = timed.filter((name) => name !== from).map((name) => {
    const div = byId(name);
    const change = {};
    for (const axis of timeAxes(div)) change[axis + ".range"] = range;
    return Plotly.relayout(div, change);
  });
  Promise.all(others).finally(() => { zooming = false; });
}

function onZoom(name, change) {
  const key = Object.keys(change).find((each) => /^xaxis\d*\.(range|autorange)/.test(each));
  if (!key) return;
  const axis = byId(name).layout[key.split(".")[0]];
  const range = change[key.split(".")[0] + ".autorange"] ? run.span : axis.range;
  zoomOthers(name, range.slice());
}

function zoomTo(from, until) {
  const margin = Math.max((until - from) * 0.05, run.span[1] * 1e-9);
  showRange([from - margin, until + margin]);
}

function showRange(range) {
  zooming = true;
  Promise.all(timed.map((name) => {
    const change = {};
    for (const axis of timeAxes(byId(name))) change[axis + ".range"] = range.slice();
    return Plotly.relayout(byId(name), change);
  })).finally(() => { zooming = false; });
}

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
    item.append(element("span", "This page carries the stories of " + Object.keys(run.stories).length +
      " tasks and objects; this one is told by "), element("code", "dualray explain " + id.slice(0, 12) + run.where));
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

async function draw() {
  for (const [name, figure] of Object.entries(run.figures)) {
    const div = byId(name);
    await Plotly.newPlot(div, figure.data, figure.layout, config);
    if (timed.includes(name)) div.on("plotly_relayout", (change) => onZoom(name, change));
    div.on("plotly_click", (event) => {
      const id = event.points[0] && event.points[0].customdata;
      if (id) tell(id);
    });
  }
  byId("search").addEventListener("change", (event) => search(event.target.value));
  byId("reset").addEventListener("click", () => showRange(run.span));
  document.querySelectorAll("button.span").forEach((button) => button.addEventListener("click", () =>
    zoomTo(Number(button.dataset.from), Number(button.dataset.until))));
  byId("close").addEventListener("click", hush);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hush(); });
  document.querySelectorAll("tr[data-task]").forEach((row) => {
    row.tabIndex = 0;
    row.addEventListener("click", () => tell(row.dataset.task));
    row.addEventListener("keydown", (event) => { if (event.key === "Enter") tell(row.dataset.task); });
  });
  document.body.dataset.drawn = "yes";
}

draw();
