// Learning curves: a line with an interval per run or role, alarms as shaded backgrounds, and an accessible table of values.
import { figure, html, useEffect, useRef, useState, value } from "./words.js";

const HEIGHT = 220;
const FEW = 40;

const ink = () => getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
const rule = () => getComputedStyle(document.documentElement).getPropertyValue("--rule").trim();

// Return uPlot's columns: steps, then for each line its values, those that do not count, and its bounds. A step that a
// line does not have is undefined, and the line goes on; null is a gap, as where a reward was not paid.
function columns(lines) {
  const steps = [...new Set(lines.flatMap((line) => line.points.map(([step]) => step)))].sort((a, b) => a - b);
  const at = new Map(steps.map((step, i) => [step, i]));
  const finite = (number) => (number !== null && Number.isFinite(value(number)) ? value(number) : null);
  const data = [steps];
  for (const line of lines) {
    const made = [0, 1, 2, 3].map(() => Array(steps.length).fill(undefined));
    for (const [step, size, low, high, counts] of line.points) {
      made[counts ? 0 : 1][at.get(step)] = finite(size);
      made[2][at.get(step)] = finite(low);
      made[3][at.get(step)] = finite(high);
    }
    data.push(...made);
  }
  return data;
}

// Points that are drawn as dots: all of a short line; of a long one those between two gaps, which would not be seen.
function marked(all) {
  return (plot, series) => {
    const values = plot.data[series].map((size, i) => [size, i]).filter(([size]) => size !== undefined);
    const gap = (near) => near === undefined || near[0] === null;
    return values.filter(([size], at) => size !== null && (all || (gap(values[at - 1]) && gap(values[at + 1])))).map(([, i]) => i);
  };
}

// The line that is drawn nearest to the pointer, at the step under it.
function nearest(plot, lines) {
  const { idx, top } = plot.cursor;
  const distances = lines.map((line, i) => [plot.data[4 * i + 1][idx] ?? plot.data[4 * i + 2][idx], line]).filter(([size]) => size !== null && size !== undefined)
    .map(([size, line]) => [Math.abs(plot.valToPos(size, "y") - top), line]).sort(([a], [b]) => a - b);
  return distances.length ? distances[0][1] : null;
}

function options(panel, alarms, width, go) {
  const series = [{}], bands = [];
  panel.lines.forEach((line, i) => {
    const stroke = line.colour;
    series.push({ label: line.name, stroke, width: 1.6, dash: line.dash, points: { show: true, size: 5, filter: marked(line.points.length <= FEW) } });
    series.push({ label: `${line.name}, does not count`, stroke, width: 0, points: { show: true, size: 5, fill: "transparent" } });
    series.push({ stroke: "transparent", points: { show: false } }, { stroke: "transparent", points: { show: false } });
    bands.push({ series: [4 * i + 4, 4 * i + 3], fill: `${stroke}26` });
  });
  const axis = { stroke: ink(), grid: { stroke: rule(), width: 1 }, ticks: { stroke: rule(), width: 1 }, font: "11px system-ui" };
  return {
    width, height: HEIGHT, series, bands, legend: { show: false }, cursor: { points: { show: false } },
    scales: { x: { time: false } }, axes: [axis, { ...axis, size: 58, values: (_, ticks) => ticks.map((tick) => figure(tick)) }],
    hooks: { drawClear: [(plot) => grounds(plot, alarms)], ready: [(plot) => plot.over.addEventListener("click", () => {
      const step = plot.cursor.idx === null || plot.cursor.idx === undefined ? null : plot.data[0][plot.cursor.idx];
      const line = step ? nearest(plot, panel.lines) : null;
      if (line) go(line, step);
    })] },
  };
}

function grounds(plot, alarms) {
  plot.ctx.fillStyle = "rgba(220, 60, 60, 0.16)";
  for (const [first, last] of alarms.flatMap((alarm) => alarm.ranges)) {
    const begin = plot.valToPos(first - 0.5, "x", true), end = plot.valToPos(last + 0.5, "x", true);
    const left = Math.max(begin, plot.bbox.left), right = Math.min(end, plot.bbox.left + plot.bbox.width);
    if (right > left) plot.ctx.fillRect(left, plot.bbox.top, right - left, plot.bbox.height);
  }
}

const measured = (line) => line.points.filter((point) => point[1] !== null);

const summary = (panel) => panel.lines.filter((line) => measured(line).length).map((line) => {
  const [first, last] = [measured(line)[0], measured(line).at(-1)];
  return `${line.name}: ${figure(first[1])} at step ${first[0]}, ${figure(last[1])} at step ${last[0]}`;
}).join("; ");

export function Chart({ panel, alarms, theme, open }) {
  const holder = useRef(null);
  const [table, setTable] = useState(false);
  useEffect(() => {
    const draw = () => {
      holder.current.replaceChildren();
      return new globalThis.uPlot(options(panel, alarms, Math.max(240, holder.current.clientWidth), open), columns(panel.lines), holder.current);
    };
    let plot = draw();
    const resized = new ResizeObserver(() => { const width = Math.max(240, holder.current.clientWidth); if (plot.width !== width) plot.setSize({ width, height: HEIGHT }); });
    resized.observe(holder.current);
    return () => { resized.disconnect(); plot.destroy(); };
  }, [panel, alarms, theme]);
  return html`<figure class="chart"><figcaption>${panel.metric}</figcaption>
    <div ref=${holder} role="img" aria-label="${panel.metric}. ${summary(panel)}"></div>
    <p class="legend">${panel.lines.map((line) => (measured(line).length ? html`<span><i style=${{ backgroundColor: line.colour }}></i>${line.name} <b>${figure(measured(line).at(-1)[1])}</b></span>` : null))}</p>
    <button type="button" class="quiet" aria-expanded=${table ? "true" : "false"} onClick=${() => setTable(!table)}>values</button>
    ${table ? html`<div class="wide" tabindex="0" role="region" aria-label="values of ${panel.metric}"><table><thead><tr><th>line</th><th>step</th><th>value</th><th>interval</th></tr></thead>
      <tbody>${panel.lines.flatMap((line) => line.points.map(([step, size, low, high, counts]) => html`<tr><td>${line.name}</td><td>${step}</td><td>${figure(size)}${counts ? "" : " (does not count)"}</td>
      <td>${low === null ? "" : `${figure(low)} to ${figure(high)}`}</td></tr>`))}</tbody></table></div>` : null}</figure>`;
}
