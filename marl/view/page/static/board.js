// State drawings (boards and cards) supplied by the games, and tables of move probabilities with reference players.
import { html, share } from "./words.js";
import { spelled } from "./text.js";

const RED = /^[♥♦]|[♥♦]$/;

export function Board({ drawing }) {
  if (!drawing) return null;
  const cell = (text) => (drawing.kind === "cards"
    ? html`<td class=${text === "?" ? "card back" : RED.test(text) ? "card red" : "card"}>${spelled(text)}</td>`
    : html`<td class="cell cell-${["x", "o"].indexOf(text)}">${spelled(text)}</td>`);
  const words = drawing.rows.map((row) => row.map((text) => text || "empty").join(" ")).join("; ");
  return html`<figure class="board"><table role="img" aria-label="${drawing.kind}: ${spelled(words)}"><tbody>
    ${drawing.rows.map((row) => html`<tr>${row.map(cell)}</tr>`)}</tbody></table>
    <figcaption>${spelled(drawing.caption)}</figcaption></figure>`;
}

function Bar({ probability, name }) {
  return html`<td class="bar"><span class="bar-fill" style=${{ width: `${100 * Number(probability || 0)}%` }}></span>
    <span class="bar-text" aria-label=${name}>${share(probability)}</span></td>`;
}

// `columns`: name of a column -> move -> probability.
export function Moves({ moves, columns, action }) {
  const names = Object.keys(columns);
  return html`<table class="moves"><thead><tr><th>move</th>${names.map((name) => html`<th>${name}</th>`)}</tr></thead>
    <tbody>${moves.map((move) => html`<tr class=${move === action ? "made" : null}><th scope="row">${spelled(move)}</th>
      ${names.map((name) => html`<${Bar} probability=${columns[name][move]} name="${name} of ${move}" />`)}</tr>`)}</tbody></table>`;
}
