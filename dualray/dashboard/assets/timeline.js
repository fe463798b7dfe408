// Draws the timeline of a run, and its demand and supply, on canvases. Bars are written into the picture's pixels: that
// takes a few milliseconds for 100,000 of them.

export const OTHERS = "#9498a0";
const LEFT = 84, TOP = 24, BOTTOM = 4;  // above TOP: times, and below them the marks of faults

export function natural(a, b) { return a.localeCompare(b, "en", { numeric: true }); }

/** Bars in typed arrays, which grow. */
export class Bars {
  constructor() { this.count = 0; this.place = new Map(); this.make(4096); this.rows = new Map(); this.order = []; this.changed = true; }
  make(size) {
    const old = this.from;
    for (const name of ["from", "until"]) { const next = new Float64Array(size); if (old) next.set(this[name]); this[name] = next; }
    for (const name of ["row", "colour"]) { const next = new Int32Array(size); if (old) next.set(this[name]); this[name] = next; }
    const flags = new Uint8Array(size); if (old) flags.set(this.flags); this.flags = flags;
    this.keys = this.keys || [];
  }
  put(key, worker, from, until, colour, flags) {
    let at = this.place.get(key);
    if (at === undefined) {
      at = this.count++;
      if (at >= this.from.length) this.make(this.from.length * 2);
      this.place.set(key, at); this.keys[at] = key;
    }
    let row = this.rows.get(worker);
    if (row === undefined) { row = this.order.length; this.rows.set(worker, row); this.order.push(worker); this.changed = true; }
    this.from[at] = from; this.until[at] = until === null ? Infinity : until; this.row[at] = row; this.colour[at] = colour; this.flags[at] = flags;
  }
  /** Where each worker is drawn, from the top. */
  lines() {
    if (this.changed) {
      this.sorted = [...this.order].sort(natural); this.line = new Int32Array(this.order.length);
      this.sorted.forEach((worker, line) => { this.line[this.rows.get(worker)] = line; });
      this.changed = false;
    }
    return this.sorted;
  }
}
export const LOST = 1, FAILED = 2, AGAIN = 4;

function colours() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(["ink", "soft", "line", "paper", "bad", "running", "queued", "blocked", "cpus", "track", "dead"].map((name) => [name, style.getPropertyValue("--" + name).trim()]));
}
function pixel(hex) { const n = parseInt(hex.slice(1), 16); return (255 << 24 | (n & 255) << 16 | (n >> 8 & 255) << 8 | n >> 16) >>> 0; }
function fit(canvas, height) {
  const ratio = Math.min(2, window.devicePixelRatio || 1), width = Math.max(200, canvas.clientWidth);
  const w = Math.round(width * ratio), h = Math.round(height * ratio);
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; canvas.style.height = height + "px"; }
  const context = canvas.getContext("2d", { willReadFrequently: true }); context.setTransform(ratio, 0, 0, ratio, 0, 0); context.clearRect(0, 0, width, height);
  context.font = "11px system-ui, sans-serif";
  return { context, width, height, ratio };
}
/** What the bars are drawn on, kept from frame to frame: new memory for each frame lets the browser collect garbage. */
function layerOf(canvas, width, height) {
  let layer = canvas.layer;
  if (!layer || layer.picture.width !== width || layer.picture.height !== height) {
    const context = Object.assign(document.createElement("canvas"), { width, height }).getContext("2d", { willReadFrequently: true });
    const picture = context.createImageData(width, height);
    layer = canvas.layer = { context, picture, pixels: new Uint32Array(picture.data.buffer) };
  }
  layer.pixels.fill(0);
  return layer;
}
export function moment(s, span) {
  if (span < 1e-3) return (s * 1e6).toFixed(0) + " us";
  if (span < 1) return (s * 1e3).toFixed(span < .01 ? 2 : 1) + " ms";
  return s.toFixed(span < 10 ? 2 : span < 100 ? 1 : 0) + " s";
}
function axis(context, view, width, height, tint) {
  const span = view.until - view.from, room = width - LEFT, raw = span / Math.max(2, room / 90);
  const power = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= raw);
  context.fillStyle = tint.soft; context.strokeStyle = tint.line; context.lineWidth = 1; context.textAlign = "center";
  for (let t = Math.ceil(view.from / step) * step; t <= view.until; t += step) {
    const x = Math.round(LEFT + (t - view.from) / span * room) + .5;
    context.beginPath(); context.moveTo(x, TOP - 3); context.lineTo(x, height - BOTTOM); context.stroke();
    if (x < width - 18) context.fillText(moment(t, span), x, 11);
  }
}
function faultMarks(context, view, marks, width, height, tint) {
  const span = view.until - view.from;
  context.strokeStyle = tint.bad; context.fillStyle = tint.bad; context.lineWidth = 1.5;
  for (const mark of marks) {
    if (mark.time < view.from || mark.time > view.until) continue;
    const x = LEFT + (mark.time - view.from) / span * (width - LEFT);
    context.beginPath(); context.moveTo(x, TOP - 5); context.lineTo(x, height); context.stroke();
    context.beginPath(); context.moveTo(x - 5, TOP - 9); context.lineTo(x + 5, TOP - 9); context.lineTo(x, TOP - 1); context.fill();
  }
}

/** Where a node is dead, its workers' rows are shaded. */
function deadStretches(context, run, view, { workers, shown, lines, each, width, height }, tint) {
  const dead = new Map([...run.tables.nodes.values()].filter((row) => row[1] === "DEAD" && row[9] !== null).map((row) => [row[0], row[9]]));
  if (!dead.size) return;
  context.fillStyle = tint.dead;
  const scale = (width - LEFT) / (view.until - view.from);
  workers.forEach((worker, line) => {
    const from = dead.get(worker.split("/")[0].split("~")[0]);
    if (from === undefined || from > view.until) return;
    const x = LEFT + Math.max(0, from - view.from) * scale, until = LEFT + (Math.min(run.now, view.until) - view.from) * scale;
    const y = TOP + (lines > shown ? Math.floor(line * shown / lines) : line) * each;
    if (until > x && y < height) context.fillRect(x, y, until - x, each);
  });
}
export function drawTimeline(canvas, run, view) {
  const began = performance.now(), bars = run.bars, workers = bars.lines(), tint = colours();
  const lines = Math.max(1, workers.length), each = Math.max(1, Math.min(18, Math.floor(440 / lines))), shown = Math.min(lines, Math.floor(440 / each));
  const { context, width, height, ratio } = fit(canvas, TOP + BOTTOM + Math.max(shown * each, 30));
  axis(context, view, width, height, tint);
  const span = view.until - view.from, x0 = Math.round(LEFT * ratio), y0 = Math.round(TOP * ratio), W = canvas.width - x0, H = Math.round(shown * each * ratio);
  canvas.geometry = { each, lines, shown, width, span, view: { ...view } };
  deadStretches(context, run, view, { workers, shown, lines, each, width, height }, tint);
  if (bars.count && W > 0 && H > 0) {
    const layer = layerOf(canvas, W, H), pixels = layer.pixels;
    const scale = W / span, palette = [...run.names.keys()].map((name) => pixel(run.colours.get(name) || OTHERS)), bad = pixel("#d1242f"), ink = pixel("#7a0c14"), tall = each * ratio;
    for (let i = 0; i < bars.count; i++) {
      const until = Math.min(bars.until[i], run.now);
      if (until < view.from || bars.from[i] > view.until) continue;
      const a = Math.max(0, Math.floor((bars.from[i] - view.from) * scale)), end = Math.floor((until - view.from) * scale);
      const b = Math.min(W, Math.max(a + 1, end - (end - a > 3 ? 1 : 0))); // a gap between bars that follow at once
      const line = lines > shown ? Math.floor(bars.line[bars.row[i]] * shown / lines) : bars.line[bars.row[i]];
      const top = Math.round(line * tall), bottom = Math.min(H, Math.max(top + 1, Math.round((line + 1) * tall) - (tall > 4 ? 1 : 0)));
      const flags = bars.flags[i], colour = flags & FAILED ? ink : flags & LOST ? bad : palette[bars.colour[i]], striped = flags & AGAIN && b - a > 5;
      for (let y = top; y < bottom; y++) {
        if (!striped) { pixels.fill(colour, y * W + a, y * W + b); continue; }
        for (let x = a; x < b; x++) pixels[y * W + x] = (x + y) % 6 < 2 ? 0xffffffff : colour;
      }
    }
    layer.context.putImageData(layer.picture, 0, 0);
    context.drawImage(layer.context.canvas, x0 / ratio, y0 / ratio, W / ratio, H / ratio);
  }
  context.textAlign = "right"; context.fillStyle = tint.ink;
  let last = -20, node = "";
  workers.forEach((worker, line) => {
    const y = TOP + (lines > shown ? line * shown / lines : line) * each, of = worker.split("/")[0].split("~")[0];
    if (of === node) { if (each >= 11) { context.fillStyle = tint.soft; context.fillText(worker.slice(worker.indexOf("/") + 1), LEFT - 6, y + each / 2 + 4); } return; }
    node = of;
    context.strokeStyle = tint.line; context.beginPath(); context.moveTo(0, Math.round(y) + .5); context.lineTo(width, Math.round(y) + .5); context.stroke();
    if (y - last >= 11) { context.fillStyle = tint.ink; context.fillText(each >= 11 ? worker.replace("/", " ") : of, LEFT - 6, y + Math.min(each, 12) / 2 + 4); last = y; }
  });
  faultMarks(context, view, run.marks, width, height, tint);
  canvas.drawnMs = performance.now() - began;
}

/** Which bar is at a point of the canvas: its key, or undefined. */
export function barAt(canvas, run, x, y) {
  const g = canvas.geometry;
  if (!g || x < LEFT || y < TOP) return undefined;
  const time = g.view.from + (x - LEFT) / (g.width - LEFT) * g.span, line = Math.floor((y - TOP) / g.each), near = g.span / (g.width - LEFT) * 2;
  const bars = run.bars; let found, best = Infinity;
  for (let i = 0; i < bars.count; i++) {
    const at = g.lines > g.shown ? Math.floor(bars.line[bars.row[i]] * g.shown / g.lines) : bars.line[bars.row[i]];
    if (at !== line) continue;
    const until = Math.min(bars.until[i], run.now), off = time < bars.from[i] ? bars.from[i] - time : time > until ? time - until : 0;
    if (off <= near && off < best) { best = off; found = bars.keys[i]; }
  }
  return found;
}
export function timeAt(canvas, x) { const g = canvas.geometry; return g.view.from + (x - LEFT) / (g.width - LEFT) * g.span; }
export function perPixel(canvas) { const g = canvas.geometry; return g ? g.span / (g.width - LEFT) : 0; }

export function drawDemand(canvas, run, view) {
  const tint = colours(), { context, width, height } = fit(canvas, 150), step = run.head.step_s || 1;
  axis(context, view, width, height, tint);
  const rows = [...run.tables.demand.values()].sort((a, b) => a[0] - b[0]), span = view.until - view.from, room = width - LEFT;
  let top = 1;
  for (const row of rows) top = Math.max(top, row[6] + row[7] + row[8], row[4] || 0);
  const x = (t) => LEFT + Math.max(0, Math.min(1, (t - view.from) / span)) * room, y = (v) => height - BOTTOM - v / top * (height - TOP - BOTTOM);
  // In its step, a row shows the moment of the largest demand; until the next row, the end of its step.
  const areas = [["blocked", (r, i) => r[i] + r[i + 1] + r[i + 2]], ["queued", (r, i) => r[i] + r[i + 1]], ["running", (r, i) => r[i]]];
  const until = (i) => i + 1 < rows.length ? rows[i + 1][0] * step : Math.max(run.now, (rows[i][0] + 1) * step);
  for (const [name, value] of areas) {
    context.fillStyle = tint[name];
    rows.forEach((row, i) => {
      const from = row[0] * step;
      if (until(i) < view.from || from > view.until) return;
      const a = x(from), b = x(Math.min(from + step, until(i))), c = x(until(i)), most = y(value(row, 6)), last = y(value(row, 1));
      context.fillRect(a, most, Math.max(1, b - a), y(0) - most);
      if (c > b) context.fillRect(b, last, c - b, y(0) - last);
    });
  }
  context.strokeStyle = tint.cpus; context.lineWidth = 2; context.beginPath();
  rows.forEach((row, i) => { if (row[4]) { const h = y(row[4]); i ? context.lineTo(x(row[0] * step), h) : context.moveTo(x(row[0] * step), h); context.lineTo(x(until(i)), h); } });
  context.stroke();
  context.textAlign = "right"; context.fillStyle = tint.soft;
  context.fillText(top.toLocaleString("en"), LEFT - 6, TOP + 8); context.fillText("0", LEFT - 6, height - BOTTOM);
  faultMarks(context, view, run.marks, width, height, tint);
}
