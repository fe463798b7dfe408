"use strict";
// Draws the page's charts on canvases. Times are numbers of the axis; `view` is the stretch of time that is shown.
const TOP = 30, BOTTOM = 6, LEAST_BAR = 3;
const START = 0, LENGTH = 1, ROW = 2, FUNCTION = 3, TASK = 4, ATTEMPT = 5, CAUSE = 6, OUTCOME = 7, WORKER = 8, COUNT = 9, NAME = 10;

function tints() {
  const style = getComputedStyle(document.documentElement);
  const names = ["ink", "soft", "line", "paper", "bad", "dead", "accent", "ground"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue("--" + name).trim()]));
}

/** The canvas's context, at the screen's resolution, empty. */
function blank(canvas, height) {
  const ratio = Math.min(3, window.devicePixelRatio || 1), width = Math.max(160, canvas.parentElement.clientWidth);
  canvas.style.width = width + "px"; canvas.style.height = height + "px";
  canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.font = "12px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif";
  const left = width < 600 ? 86 : 124;
  canvas.frame = { left, right: width - 12, width, height };
  return { context, left, right: width - 12, width };
}

function xOf(frame, view, time) { return frame.left + (time - view[0]) / (view[1] - view[0]) * (frame.right - frame.left); }
function timeOf(frame, view, x) { return view[0] + (x - frame.left) / (frame.right - frame.left) * (view[1] - view[0]); }

function short(number, digits = 6) { return String(Number(number.toFixed(digits))); }

function drawAxis(context, frame, view, unit, bottom, tint) {
  const span = view[1] - view[0], raw = span / Math.max(2, (frame.right - frame.left) / (frame.width < 600 ? 80 : 110));
  const power = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= raw);
  const digits = Math.max(0, -Math.floor(Math.log10(step)));
  context.textAlign = "center"; context.fillStyle = tint.soft; context.strokeStyle = tint.line; context.lineWidth = 1;
  for (let at = Math.ceil(view[0] / step) * step; at <= view[1] + step * 1e-6; at += step) {
    const x = Math.round(xOf(frame, view, at)) + .5;
    context.beginPath(); context.moveTo(x, TOP - 6); context.lineTo(x, bottom); context.stroke();
    if (x < frame.right - 14) context.fillText(short(at, digits) + " " + unit, x, 12);
  }
}

function clip(context, frame, top, bottom, draw) {
  context.save(); context.beginPath(); context.rect(frame.left, top, frame.right - frame.left, bottom - top); context.clip();
  draw(); context.restore();
}

function fitted(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let kept = text.length;
  while (kept > 1 && context.measureText(text.slice(0, kept) + "…").width > room) kept--;
  return text.slice(0, kept) + "…";
}

// ---- Tasks on workers -------------------------------------------------------------------------------------------

function hatch(context, colour, paper, crossed) {
  const tile = document.createElement("canvas"); tile.width = tile.height = 8;
  const pen = tile.getContext("2d");
  pen.fillStyle = colour; pen.fillRect(0, 0, 8, 8);
  pen.strokeStyle = paper; pen.lineWidth = 2; pen.beginPath();
  for (const shift of [-8, 0, 8]) { pen.moveTo(shift, 8); pen.lineTo(shift + 8, 0); if (crossed) { pen.moveTo(shift, 0); pen.lineTo(shift + 8, 8); } }
  pen.stroke();
  return context.createPattern(tile, "repeat");
}

function rowHeight(chart) { return Math.min(Math.max(Math.floor(880 / Math.max(chart.rows.length, 1)), 7), 18); }

/** Where a bar is on the canvas: x, y, width, height. */
function barBox(canvas, chart, view, bar) {
  const tall = rowHeight(chart), x = xOf(canvas.frame, view, bar[START]);
  const width = Math.max(LEAST_BAR, xOf(canvas.frame, view, bar[START] + bar[LENGTH]) - x);
  return [x, TOP + bar[ROW] * tall + 1, width, tall - 2];
}

function drawGantt(canvas, chart, view, unit) {
  const tall = rowHeight(chart), bottom = TOP + Math.max(tall * chart.rows.length, 40), tint = tints();
  const { context, left, right, width } = blank(canvas, bottom + BOTTOM), frame = canvas.frame;
  drawAxis(context, frame, view, unit, bottom, tint);
  clip(context, frame, TOP, bottom, () => {
    context.fillStyle = tint.dead;
    for (const [from, until, first, end] of chart.dead) {
      const x = xOf(frame, view, from);
      context.fillRect(x, TOP + first * tall, xOf(frame, view, until) - x, (end - first) * tall);
    }
    const fills = chart.functions.map(([, colour]) => [colour, hatch(context, colour, tint.paper, false), hatch(context, colour, tint.paper, true)]);
    for (const bar of chart.bars) {
      const [x, y, wide, high] = barBox(canvas, chart, view, bar);
      if (x > right || x + wide < left) continue;
      context.fillStyle = fills[bar[FUNCTION]][bar[OUTCOME] === "lost" ? 2 : bar[CAUSE] ? 1 : 0];
      context.fillRect(x, y, wide, high);
      if (bar[OUTCOME]) { context.strokeStyle = tint.bad; context.lineWidth = 1.5; context.strokeRect(x + .75, y + .75, Math.max(wide - 1.5, .5), high - 1.5); }
    }
    drawPath(context, frame, chart, view, tall, tint);
  });
  context.strokeStyle = tint.line; context.lineWidth = 1;
  for (const [node, first, end] of chart.nodes) {
    const y = Math.round(TOP + end * tall) + .5;
    context.beginPath(); context.moveTo(0, y); context.lineTo(right, y); context.stroke();
    context.textAlign = "left"; context.fillStyle = tint.ink;
    const fit = tall >= 13 || end - first > 1;
    context.font = "600 " + context.font.replace(/^\d+ /, "");
    if (fit || tall >= 10) context.fillText(fitted(context, node, tall >= 13 && chart.rows[first] ? left * .66 : left - 8), 2, TOP + first * tall + Math.max(tall - 5, 10));
    context.font = context.font.replace(/^600 /, "");
    if (tall < 13) continue;
    context.textAlign = "right"; context.fillStyle = tint.soft;
    for (let row = first; row < end; row++) {
      if (chart.rows[row]) context.fillText(fitted(context, chart.rows[row], row === first ? left * .28 : left - 10), left - 6, TOP + row * tall + tall - 5);
    }
  }
  drawFaults(context, frame, chart.faults, view, bottom, tint);
  return width;
}

function drawPath(context, frame, chart, view, tall, tint) {
  context.strokeStyle = tint.ink;
  context.lineWidth = 1; context.setLineDash([2, 3]); context.beginPath();
  chart.path.forEach(([from, until, row], at) => {
    const y = TOP + (row + .5) * tall;
    if (at) context.lineTo(xOf(frame, view, from), y); else context.moveTo(xOf(frame, view, from), y);
    context.lineTo(xOf(frame, view, until), y);
  });
  context.stroke();
  context.lineWidth = 3; context.setLineDash([]); context.beginPath();
  for (const [from, until, row] of chart.path) {
    const y = TOP + (row + .5) * tall, x = xOf(frame, view, from);
    context.moveTo(x, y); context.lineTo(Math.max(x + LEAST_BAR, xOf(frame, view, until)), y);
  }
  context.stroke();
}

function drawFaults(context, frame, faults, view, bottom, tint) {
  context.strokeStyle = context.fillStyle = tint.bad; context.lineWidth = 1.2;
  for (const [at] of faults) {
    const x = xOf(frame, view, at);
    if (x < frame.left || x > frame.right) continue;
    context.setLineDash([2, 3]); context.beginPath(); context.moveTo(x, TOP - 4); context.lineTo(x, bottom); context.stroke(); context.setLineDash([]);
    context.beginPath(); context.moveTo(x - 6, TOP - 12); context.lineTo(x + 6, TOP - 12); context.lineTo(x, TOP - 2); context.fill();
  }
}

/** Lines for what is at a point of the chart of tasks, and the task to tell of. */
function hitGantt(canvas, chart, view, unit, x, y) {
  for (const [at, words] of chart.faults) {
    if (y < TOP && Math.abs(xOf(canvas.frame, view, at) - x) < 8) return { lines: ["fault: " + words, "at " + short(at) + " " + unit] };
  }
  let found = null, nearest = 4;
  for (const bar of chart.bars) {
    const [left, top, wide, high] = barBox(canvas, chart, view, bar);
    const off = x < left ? left - x : x > left + wide ? x - left - wide : 0;
    if (y >= top - 1 && y <= top + high + 1 && off < nearest) { found = bar; nearest = off || 1e-9; }
  }
  if (!found) return null;
  const lines = [found[NAME] || "a task"];
  lines.push(found[COUNT] > 1 ? found[COUNT].toLocaleString("en") + " short tasks, drawn as one" : "task " + found[TASK].slice(0, 8) + ", attempt " + found[ATTEMPT] + (found[CAUSE] ? " (" + found[CAUSE] + ")" : ""));
  lines.push(found[WORKER] + ": " + short(found[LENGTH]) + " " + unit + " from " + short(found[START]) + " " + unit);
  if (found[OUTCOME]) lines.push(found[OUTCOME]);
  return { lines, task: found[TASK] };
}

// ---- The critical path ------------------------------------------------------------------------------------------

function drawStrip(canvas, strip, view, unit) {
  const bottom = TOP + 46, tint = tints(), { context } = blank(canvas, bottom + BOTTOM), frame = canvas.frame;
  drawAxis(context, frame, view, unit, bottom, tint);
  clip(context, frame, TOP, bottom, () => {
    for (const [start, length, kind] of strip.stretches) {
      const x = xOf(frame, view, start), wide = xOf(frame, view, start + length) - x;
      context.fillStyle = strip.kinds[kind][1];
      context.fillRect(x, TOP + 4, Math.max(1, wide - (wide > 4 ? .5 : 0)), 38);
    }
  });
  context.textAlign = "right"; context.fillStyle = tint.ink; context.fillText("path", frame.left - 6, TOP + 27);
}

function hitStrip(canvas, strip, view, unit, x, y) {
  if (y < TOP) return null;
  const at = timeOf(canvas.frame, view, x), slack = (view[1] - view[0]) / canvas.frame.width;
  const found = strip.stretches.find(([start, length]) => at >= start - slack && at <= start + length + slack);
  if (!found) return null;
  const [, length, kind, task, who, where, words] = found;
  return { lines: [strip.kinds[kind][0] + ": " + short(length) + " " + unit, who + (task ? " (task " + task.slice(0, 8) + ")" : "") + " on " + where, words], task };
}

// ---- Use of resources -------------------------------------------------------------------------------------------

const TOTAL_PX = 74, GAP_PX = 40;
function bandHeight(chart) { return Math.min(Math.max(14 * chart.nodes.length, 28), 260) / Math.max(1, chart.nodes.length); }
function blockHeight(chart) { return GAP_PX + TOTAL_PX + 6 + bandHeight(chart) * chart.nodes.length; }

function amount(value) {
  for (const [sign, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (Math.abs(value) >= size) return Number((value / size).toPrecision(3)) + " " + sign;
  return Number(value.toPrecision(3)) + " ";
}

function drawUsage(canvas, chart, view, unit, whole) {
  const each = blockHeight(chart), tall = bandHeight(chart), tint = tints();
  const { context } = blank(canvas, TOP + each * chart.resources.length + BOTTOM), frame = canvas.frame;
  drawAxis(context, frame, view, unit, TOP + each * chart.resources.length, tint);
  chart.resources.forEach((resource, position) => {
    const top = TOP + position * each + GAP_PX - 12, floor = top + TOTAL_PX, bins = resource.total.length;
    const seen = Math.max(...resource.total, ...(resource.there && "CPU GPU".includes(resource.unit) ? resource.there : [0]));
    const highest = (resource.wanted ? Math.min(Math.max(seen, ...resource.wanted), 2 * seen) : seen) * 1.08 || 1;
    const y = (value) => floor - Math.min(value / highest, 1) * TOTAL_PX, x = (bin) => xOf(frame, view, whole[0] + bin / bins * (whole[1] - whole[0]));
    context.textAlign = "left"; context.fillStyle = tint.ink; context.fillText(fitted(context, resource.name + " [" + resource.unit + "], all nodes", frame.right - frame.left), frame.left, top - 6);
    context.textAlign = "right"; context.fillStyle = tint.soft;
    context.fillText(amount(highest / 1.08) + resource.unit, frame.left - 6, top + 14); context.fillText("0", frame.left - 6, floor);
    clip(context, frame, top, floor + 8 + tall * chart.nodes.length, () => {
      context.beginPath(); context.moveTo(x(0), floor);
      resource.total.forEach((value, bin) => { context.lineTo(x(bin), y(value)); context.lineTo(x(bin + 1), y(value)); });
      context.lineTo(x(bins), floor);
      context.fillStyle = context.strokeStyle = tint.accent; context.globalAlpha = .2; context.fill(); context.globalAlpha = 1; context.lineWidth = 1.4; context.stroke();
      if (resource.there) {
        context.beginPath(); context.setLineDash([3, 3]); context.strokeStyle = tint.ink; context.lineWidth = 1;
        resource.there.forEach((value, bin) => { context.lineTo(x(bin), y(value)); context.lineTo(x(bin + 1), y(value)); });
        context.stroke(); context.setLineDash([]);
      }
      if (resource.wanted) {
        context.beginPath(); context.strokeStyle = tint.accent; context.lineWidth = 1;
        resource.wanted.forEach((value, bin) => { context.lineTo(x(bin), y(value)); context.lineTo(x(bin + 1), y(value)); });
        context.stroke();
      }
      resource.bands.forEach((band, row) => {
        const above = floor + 6 + row * tall;
        band.forEach((value, bin) => {
          const from = x(bin), wide = x(bin + 1) - from + .5;
          if (from > frame.right || from + wide < frame.left) return;
          context.globalAlpha = 1; context.fillStyle = value === null ? tint.line : tint.ground; context.fillRect(from, above, wide, tall - 1);
          if (value) { context.globalAlpha = .15 + .85 * Math.min(value, 1); context.fillStyle = tint.accent; context.fillRect(from, above, wide, tall - 1); }
        });
        context.globalAlpha = 1;
      });
    });
    context.fillStyle = tint.soft; context.textAlign = "right";
    if (tall >= 11) chart.nodes.forEach((node, row) => context.fillText(fitted(context, node, frame.left - 8), frame.left - 6, floor + 6 + row * tall + tall - 3));
  });
}

function hitUsage(canvas, chart, view, unit, x, y, whole) {
  const each = blockHeight(chart), position = Math.floor((y - TOP) / each), resource = chart.resources[position];
  if (!resource || x < canvas.frame.left) return null;
  const at = timeOf(canvas.frame, view, x), bins = resource.total.length, bin = Math.floor((at - whole[0]) / (whole[1] - whole[0]) * bins);
  if (bin < 0 || bin >= bins) return null;
  const row = Math.floor((y - TOP - position * each - GAP_PX + 12 - TOTAL_PX - 6) / bandHeight(chart));
  const when = "at " + short(at) + " " + unit;
  if (row >= 0 && row < chart.nodes.length) {
    const value = resource.bands[row][bin];
    return { lines: [chart.nodes[row] + ", " + resource.name, value === null ? "the node is not there" : (100 * value).toFixed(1) + " % " + resource.of, when] };
  }
  const there = resource.there ? " of " + amount(resource.there[bin]) + resource.unit : "";
  const wanted = resource.wanted ? [amount(resource.wanted[bin]) + resource.unit + " wanted by tasks that run or wait"] : [];
  return { lines: [resource.name + ", all nodes", amount(resource.total[bin]) + resource.unit + there, ...wanted, when] };
}
