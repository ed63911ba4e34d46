// Graph of an episode: one column per agent, one row per generation, one arrow per kind of edge.
import { figure, html, KINDS, useLayoutEffect, useMemo, useRef, useState, value } from "./words.js";
import { cut, spelled } from "./text.js";

const WIDTH = 132, HEIGHT = 66, BOX = { width: 108, height: 40 }, TOP = 26;

const middle = (turn) => [turn.column * WIDTH + WIDTH / 2, TOP + turn.row * HEIGHT + HEIGHT / 2];

function path(source, reader, nth) {
  const [x1, y1] = middle(source), [x2, y2] = middle(reader);
  const begin = y1 + BOX.height / 2, end = y2 - BOX.height / 2 - 5;
  if (source.column === reader.column && reader.row - source.row > 1) {
    const side = x1 + BOX.width / 2 + 8 + 4 * nth;  // around what lies between
    return `M ${x1 + BOX.width / 2} ${y1} C ${side + 14} ${y1}, ${side + 14} ${y2}, ${x2 + BOX.width / 2 + 5} ${y2}`;
  }
  const shift = 7 * nth;
  return `M ${x1 + shift} ${begin} C ${x1 + shift} ${begin + 22}, ${x2 + shift} ${end - 22}, ${x2 + shift} ${end}`;
}

function fill(advantage, scale) {
  if (advantage === null || !scale) return "transparent";
  const strength = 0.45 * Math.min(1, Math.abs(advantage) / scale);
  return advantage < 0 ? `rgba(230, 120, 0, ${strength})` : `rgba(0, 114, 178, ${strength})`;
}

const label = (turn, chain, advantage) => `turn ${turn.index}, ${turn.agent}, ${turn.action === null ? "unreadable" : spelled(turn.action)}`
  + (!chain ? "" : advantage === null ? ", no credit" : `, advantage ${figure(advantage, true)}`);

function Node({ turn, chain, scale, chosen, choose }) {
  const [x, y] = middle(turn);
  const advantage = chain && !chain.no_credit ? value(chain.advantage) : null;
  const press = (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(turn.index); } };
  const gave = turn.gave.map((score) => `${score.name} ${figure(score.value)}`).join(", ");
  const said = cut(spelled(gave || (turn.action ?? "?")).replace(/\s+/g, " "), 14);
  return html`<g class=${chosen ? "node chosen" : "node"} role="button" tabindex="0" aria-pressed=${chosen ? "true" : "false"}
      aria-label=${label(turn, chain, advantage)} data-turn=${turn.index} onClick=${() => choose(turn.index)} onKeyDown=${press}>
    <title>${label(turn, chain, advantage)}</title>
    <rect class="ground" x=${x - BOX.width / 2} y=${y - BOX.height / 2} width=${BOX.width} height=${BOX.height} rx="6" />
    <rect class="box" x=${x - BOX.width / 2} y=${y - BOX.height / 2} width=${BOX.width} height=${BOX.height} rx="6" fill=${fill(advantage, scale)} />
    <text x=${x} y=${y - 4}>${turn.index}: ${said}</text>
    <text class="small" x=${x} y=${y + 13}>${advantage === null ? (chain ? "no credit" : "") : figure(advantage, true)}</text></g>`;
}

const MARGIN = 12;  // rows that are drawn above and below those in sight
const IN_SIGHT = 40;

// Columns, rows and arrows of an episode, computed once.
function layout(episode) {
  const greatest = (name) => episode.turns.reduce((most, turn) => Math.max(most, turn[name]), 0);
  const turnOf = new Map(episode.turns.map((turn) => [turn.index, turn]));
  const arrows = episode.edges.flatMap((edge) => Object.keys(edge.kinds).map((kind, nth) => ({ ...edge, kind, nth, top: turnOf.get(edge.source), end: turnOf.get(edge.reader) })));
  return {
    columns: 1 + greatest("column"), rows: 1 + greatest("row"), arrows, used: [...new Set(arrows.map((arrow) => arrow.kind))],
    agents: [...new Map(episode.turns.map((turn) => [turn.column, turn])).values()],
  };
}

// Returns [reference of the scrolled element, first row to draw, last row to draw]; the chosen turn is scrolled into sight.
function useRowsInSight(turn) {
  const holder = useRef(null);
  const [first, set] = useState(0);
  const look = () => set(Math.floor(holder.current.scrollTop / HEIGHT / MARGIN) * MARGIN);
  useLayoutEffect(() => {
    if (!turn) return;
    const element = holder.current, y = TOP + turn.row * HEIGHT;
    if (y < element.scrollTop || y + HEIGHT > element.scrollTop + element.clientHeight) element.scrollTop = Math.max(0, y - element.clientHeight / 2);
    look();
  }, [turn]);
  return [holder, look, first - MARGIN, first + IN_SIGHT + MARGIN];
}

export function Graph({ episode, chains, scale, chosen, choose }) {
  const { columns, rows, arrows, used, agents } = useMemo(() => layout(episode), [episode]);
  const [holder, look, begin, end] = useRowsInSight(episode.turns[chosen]);
  const [width, height] = [columns * WIDTH + 24, TOP + rows * HEIGHT + 8];
  const seen = (turn) => turn.row >= begin && turn.row <= end;
  const crosses = (arrow) => arrow.end.row >= begin && arrow.top.row <= end;
  return html`<div class="graph" ref=${holder} onScroll=${look} tabindex="0" role="region" aria-label="graph of the episode">
    <svg width=${width} height=${height} viewBox="0 0 ${width} ${height}" role="group" aria-label="turns, and what led to what">
      <defs>${used.map((kind) => html`<marker id="arrow-${kind}" viewBox="0 0 8 8" refX="6" refY="4" markerUnits="userSpaceOnUse" markerWidth="9" markerHeight="9" orient="auto">
        <path d="M 0 0 L 8 4 L 0 8 z" fill=${KINDS[kind][0]} /></marker>`)}</defs>
      ${agents.map((turn) => html`<rect class="role" x=${turn.column * WIDTH + WIDTH / 2 - 20} y="20" width="40" height="4" fill=${episode.role_colours[turn.role] ?? "transparent"} /><text class="agent" x=${turn.column * WIDTH + WIDTH / 2} y="16">${cut(spelled(turn.agent), 18)}</text>`)}
      ${arrows.filter(crosses).map((arrow) => html`<path key="${arrow.source}-${arrow.reader}-${arrow.kind}" class=${arrow.source === chosen || arrow.reader === chosen ? "edge near" : "edge"}
        d=${path(arrow.top, arrow.end, arrow.nth)} stroke=${KINDS[arrow.kind][0]}
        stroke-dasharray=${arrow.kind === "gated" ? "4 3" : null} marker-end="url(#arrow-${arrow.kind})">
        <title>${arrow.source} → ${arrow.reader}: ${arrow.kind}${arrow.kinds[arrow.kind] ? `, ${arrow.kinds[arrow.kind]} tokens` : ""}</title></path>`)}
      ${episode.turns.filter(seen).map((turn) => html`<${Node} key=${turn.index} turn=${turn} chain=${chains && chains[turn.index]} scale=${scale} chosen=${turn.index === chosen} choose=${choose} />`)}
    </svg>
    <p class="legend">${used.map((kind) => html`<span><i style=${{ backgroundColor: KINDS[kind][0] }}></i>${kind}: ${KINDS[kind][1]}</span>`)}</p></div>`;
}
