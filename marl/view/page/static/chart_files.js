// A chart as a file: its values as CSV, its lines as SVG, its pixels as PNG.
import { value } from "./words.js";
import { COLUMNS, ticks, tickText } from "./curves.js";

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const MARGIN = 26;  // height of the title, and of a line of the legend [pixels]

function save(name, blob) {
  const link = document.createElement("a"), address = URL.createObjectURL(blob);
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

export const fileName = (metric) => metric.replace(/[^\w.-]+/g, "_").replace(/^_+|_+$/g, "");

// A name that a spreadsheet would take for a formula is marked as text.
const cell = (text) => `"${(/^[=+\-@\t\r]/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;

export function csv(panel, x) {
  const number = (size) => (size === null || size === undefined ? "" : String(value(size)));
  const head = ["line", "step", ...(x.kind ? [x.label] : []), "value", "low", "high", "counts"];
  const rows = panel.lines.flatMap((line) => line.points.map(([step, size, low, high, counts]) =>
    [cell(line.name), step, ...(x.kind ? [x.at(step, line.runs)] : []), number(size), number(low), number(high), counts].join(",")));
  return [head.join(","), ...rows, ""].join("\n");
}

export const saveCsv = (panel, x) => save(`${fileName(panel.metric)}.csv`, new Blob([csv(panel, x)], { type: "text/csv" }));

export function savePng(panel, plot) {
  const ratio = devicePixelRatio, { width, height } = plot.ctx.canvas;
  const canvas = Object.assign(document.createElement("canvas"), { width, height: height + MARGIN * ratio * (1 + panel.lines.length) });
  const draw = canvas.getContext("2d");
  draw.fillStyle = style("--ground");
  draw.fillRect(0, 0, canvas.width, canvas.height);
  draw.drawImage(plot.ctx.canvas, 0, MARGIN * ratio);
  draw.fillStyle = style("--ink");
  draw.font = `600 ${13 * ratio}px system-ui`;
  draw.fillText(panel.metric, 8 * ratio, 18 * ratio);
  draw.font = `${12 * ratio}px system-ui`;
  panel.lines.forEach((line, i) => {
    const y = height + MARGIN * ratio * (1 + i);
    draw.fillStyle = line.colour;
    draw.fillRect(8 * ratio, y + 6 * ratio, 12 * ratio, 12 * ratio);
    draw.fillStyle = style("--ink");
    draw.fillText(line.name, 26 * ratio, y + 17 * ratio);
  });
  canvas.toBlob((blob) => save(`${fileName(panel.metric)}.png`, blob));
}

const escaped = (text) => text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);
const round = (number) => Number(number.toFixed(2));

// The plot as SVG, in the colours of a white page, at the size and scales that it has on the screen.
export function svg(panel, plot, x, unit, logarithmic) {
  const box = Object.fromEntries(Object.entries(plot.bbox).map(([name, size]) => [name, size / devicePixelRatio]));
  const top = MARGIN + box.top, bottom = top + box.height, right = box.left + box.width;
  const at = (position) => round(box.left + plot.valToPos(position, "x")), up = (size) => round(top + plot.valToPos(size, "y"));
  const text = (left, y, words, more = "") => `<text x="${round(left)}" y="${round(y)}" ${more}>${escaped(words)}</text>`;
  const parts = [text(8, 18, panel.metric, 'font-weight="600" font-size="13"')];
  for (const tick of ticks(plot.scales.y.min, plot.scales.y.max, 5, logarithmic)) parts.push(`<path d="M${round(box.left)} ${up(tick)}H${round(right)}" stroke="#d5d9df"/>`, text(box.left - 5, up(tick) + 4, tickText(tick), 'text-anchor="end"'));
  for (const tick of ticks(plot.scales.x.min, plot.scales.x.max, 6, false)) parts.push(`<path d="M${at(tick)} ${round(top)}V${round(bottom)}" stroke="#d5d9df"/>`, text(at(tick), bottom + 15, tickText(tick), 'text-anchor="middle"'));
  parts.push(text((box.left + right) / 2, bottom + 32, x.label, 'text-anchor="middle"'));
  if (unit) parts.push(`<text transform="translate(12 ${round((top + bottom) / 2)}) rotate(-90)" text-anchor="middle">${escaped(unit)}</text>`);
  panel.lines.forEach((line, i) => {
    parts.push(`<g clip-path="url(#plot)">${drawnLine(plot, line, 1 + COLUMNS * i, at, up)}</g>`);
    const y = bottom + 42 + MARGIN * 0.8 * i;
    parts.push(`<path d="M8 ${round(y + 6)}h16" stroke="${line.colour}" stroke-width="2"${dashes(line)}/>`, text(30, y + 10, line.name));
  });
  const height = round(bottom + 46 + MARGIN * 0.8 * panel.lines.length);
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${plot.width}" height="${height}" viewBox="0 0 ${plot.width} ${height}" font-family="Helvetica, Arial, sans-serif" font-size="11">
<clipPath id="plot"><rect x="${round(box.left)}" y="${round(top)}" width="${round(box.width)}" height="${round(box.height)}"/></clipPath>
<rect width="100%" height="100%" fill="#ffffff"/>
${parts.join("\n")}
</svg>
`;
}

const dashes = (line) => (line.dash.length ? ` stroke-dasharray="${line.dash.join(" ")}"` : "");

function drawnLine(plot, line, first, at, up) {
  const pairs = (column) => plot.data[0].map((position, k) => [position, plot.data[first + column][k]]).filter(([, size]) => size !== undefined);
  const path = (points) => points.map(([position, size], k) => (size === null ? "" : `${k && points[k - 1][1] !== null ? "L" : "M"}${at(position)} ${up(size)}`)).join("");
  const bands = [[2, 3], [4, 5]].map(([low, high]) => {
    const known = (column) => pairs(column).filter(([, size]) => size !== null);
    const outline = [...known(low), ...known(high).reverse()];
    return outline.length > 3 ? `<path d="${path(outline)}Z" fill="${line.colour}" fill-opacity="0.15"/>` : "";
  });
  const raw = path(pairs(6));
  const circles = pairs(1).filter(([, size]) => size !== null).map(([position, size]) => `<circle cx="${at(position)}" cy="${up(size)}" r="2.5" fill="none" stroke="${line.colour}"/>`);
  return `${bands.join("")}${raw ? `<path d="${raw}" fill="none" stroke="${line.colour}" stroke-opacity="0.3"/>` : ""}<path d="${path(pairs(0))}" fill="none" stroke="${line.colour}" stroke-width="1.6"${dashes(line)}/>${circles.join("")}`;
}

export const saveSvg = (panel, plot, x, unit, logarithmic) => save(`${fileName(panel.metric)}.svg`, new Blob([svg(panel, plot, x, unit, logarithmic)], { type: "image/svg+xml" }));
