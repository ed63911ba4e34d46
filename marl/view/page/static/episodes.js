// List of recorded episodes with filters, search and order.
import { address, figure, go, html, stay, typing, useKeys, useRef, useState } from "./words.js";
import { episodeQuery, live, useAnswer } from "./store.js";
import { cut, spelled } from "./text.js";
import { alarmName } from "./run_state.js";
import { Chosen, Compare, useComparison } from "./comparison.js";

const PAGE = 50;

function Field({ name, label, children }) {
  return html`<label class="field" for="filter-${name}"><span>${label}</span>${children}</label>`;
}

function Choice({ name, label, query, change, choices }) {
  return html`<${Field} name=${name} label=${label}><select id="filter-${name}" value=${query[name] || ""} onChange=${(event) => change({ [name]: event.target.value })}>
    ${choices.map(([value, words]) => html`<option value=${value}>${words}</option>`)}</select><//>`;
}

// What is typed is kept until it is entered: a page that is drawn anew meanwhile must not take it away.
function Entry({ name, label, query, change, kind = "number" }) {
  const [typed, type] = useState(null);
  const enter = (event) => { type(null); change({ [name]: event.target.value }); };
  return html`<${Field} name=${name} label=${label}><input id="filter-${name}" type=${kind} step="any" value=${typed ?? (query[name] || "")}
    onInput=${(event) => type(event.target.value)} onChange=${enter} /><//>`;
}

function Flag({ name, label, query, change }) {
  return html`<label class="flag"><input type="checkbox" checked=${query[name] === "1"} onChange=${(event) => change({ [name]: event.target.checked ? "1" : "" })} /> ${label}</label>`;
}

function Filters({ run, query, change }) {
  const plain = (list) => list.map((each) => [each, each]);
  const alarms = run.alarms.map((alarm) => [alarm.name, alarmName(alarm)]);
  // The sum of rewards of a zero-sum game is always 0: its best and worst episodes are those of the learner.
  const reorder = ({ order }) => change({ order, ...(["best", "worst"].includes(order) && !query.figure && !query.role ? { figure: run.ordering_figure } : {}) });
  return html`<form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}>
    <${Field} name="text" label="search (/)"><input id="filter-text" type="search" value=${query.text || ""} onInput=${(event) => change({ text: event.target.value })} /><//>
    <${Choice} name="role" label="role" query=${query} change=${change} choices=${[["", "any"], ...plain(run.roles)]} />
    ${run.games.length ? html`<${Choice} name="game" label="game" query=${query} change=${change} choices=${[["", "any"], ...plain(run.games)]} />` : null}
    <${Entry} name="first" label="from step" query=${query} change=${change} /><${Entry} name="last" label="to step" query=${query} change=${change} />
    <${Choice} name="figure" label="figure" query=${query} change=${change} choices=${[["", "sum of rewards"], ...run.figures.map((name) => [name, name.startsWith("return/") ? `${name}, sum of its seats` : name])]} />
    <${Entry} name="low" label="at least" query=${query} change=${change} /><${Entry} name="high" label="at most" query=${query} change=${change} />
    ${alarms.length ? html`<${Choice} name="alarm" label="during alarm" query=${query} change=${change} choices=${[["", "any step"], ...alarms]} />` : null}
    <${Choice} name="order" label="order" query=${query} change=${reorder} choices=${[["", "newest first"], ["oldest", "oldest first"], ["best", "best first"], ["worst", "worst first"], ["longest", "longest first"], ["shortest", "shortest first"]]} />
    <${Flag} name="unreadable" label="with unreadable turns" query=${query} change=${change} /><${Flag} name="cut_off" label="with cut-off turns" query=${query} change=${change} />
    <button type="button" onClick=${() => go("episodes", { run: run.name })}>clear</button></form>`;
}

function Progress({ index }) {
  const recorded = live ? `; ${index.recorded} step${index.recorded === 1 ? " was" : "s were"} recorded` : "";
  const words = index.indexed < index.recorded ? `${recorded}, ${index.indexed} of them indexed so far` : recorded;
  return html`${words}${index.problems.map((problem) => html`<p class="warning">${spelled(problem)}</p>`)}`;
}

const MOST_COLUMNS = 6;

// Columns of figures: one for each agent's return and each measure, or one for all returns and all measures if there are many.
function figureColumns(run) {
  const names = run.figures.filter((name) => /^(agent|measure)\//.test(name));
  if (names.length > MOST_COLUMNS) return ["agent/", "measure/"].map((prefix) => ({ name: prefix === "agent/" ? "returns" : "measures", prefix }));
  return names.map((figureName) => ({ name: figureName.replace(/^agent\//, "return of ").replace(/^measure\//, ""), figure: figureName }));
}

function cellText(column, figures) {
  if (column.figure) return column.figure in figures ? figure(figures[column.figure], column.figure.startsWith("agent/")) : "–";
  return Object.entries(figures).filter(([name]) => name.startsWith(column.prefix)).map(([name, number]) => `${name.slice(column.prefix.length)} ${figure(number, column.prefix === "agent/")}`).join(", ");
}

// A column's header that orders the list; a second click turns the order around. `orders`: [first, second].
function Sortable({ words, query, change, orders, figureName = null }) {
  const here = figureName === null || (query.figure || "") === figureName;
  const order = here ? orders.indexOf(query.order || "newest") : -1;
  const press = () => change({ order: orders[order === 0 ? 1 : 0], ...(figureName === null ? {} : { figure: figureName }) });
  const descending = ["newest", "best", "longest"].includes(query.order || "newest");
  return html`<th aria-sort=${order < 0 ? null : descending ? "descending" : "ascending"}><button type="button" class="sort" onClick=${press}>${words}<span aria-hidden="true">${order < 0 ? "" : descending ? " ▾" : " ▴"}</span></button></th>`;
}

function Row({ run, each, chosen, columns, link, comparison }) {
  const key = episodeQuery({ run, step: each.step, episode: each.episode });
  return html`<tr class=${chosen ? "chosen" : null}><td>${each.step}</td><td><a href=${address("episode", { ...key, ...link })}>${each.episode}</a></td>
    <td>${figure(each.paid, true)}</td>${columns.map((column) => html`<td>${cellText(column, each.figures)}</td>`)}<td>${each.turns}</td>
    <td>${each.unreadable ? html`<span class="warning">${each.unreadable} unreadable</span>` : ""}${each.cut_off ? html` <span class="warning">${each.cut_off} cut off</span>` : ""}</td>
    <td><${Compare} episode=${key} comparison=${comparison} /></td><td class="start">${spelled(cut(each.start.replace(/\s+/g, " "), 60))}</td></tr>`;
}

export function EpisodesPage({ run, query, version }) {
  const [chosen, choose] = useState(-1);
  const comparison = useComparison(), columns = figureColumns(run);
  const body = useRef(null);
  const offset = Number(query.offset || 0);
  const { answer, error } = useAnswer("episodes", { ...query, run: run.name, offset, limit: PAGE }, version, true);
  const change = (changes) => { choose(-1); stay("episodes", { ...query, run: run.name, offset: "", ...changes }); };
  useKeys((event) => {
    if (typing(event) || !answer) return;
    const move = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
    if (move) {
      event.preventDefault();
      const next = Math.max(0, Math.min(answer.episodes.length - 1, chosen + move));
      choose(next);
      body.current?.children[next]?.querySelector("a")?.focus();
    }
  });
  const { run: _, offset: __, ...filters } = query;
  const list = new URLSearchParams(Object.entries(filters).filter(([, each]) => each)).toString();
  const by = (words, orders, figureName) => html`<${Sortable} words=${words} query=${query} change=${change} orders=${orders} figureName=${figureName} />`;
  return html`<section aria-label="episodes"><h2>episodes of ${run.name}</h2><${Filters} run=${run} query=${query} change=${change} /><${Chosen} comparison=${comparison} />
    ${error ? html`<p class="warning" role="alert">${spelled(error)}</p>` : null}
    ${answer ? html`<p role="status">${answer.count} episodes${live ? "" : `, of ${answer.index.episodes} that the run recorded: this report holds a selection`}<${Progress} index=${answer.index} /></p>
      ${answer.index.recorded === 0 ? html`<p>Nothing was recorded yet; the setting <code>checkpoint.trajectories</code> is the share of steps that are.</p>` : null}
      <div class="wide" tabindex="0" role="region" aria-label="list of episodes"><table class="list"><thead><tr>${by("step", ["newest", "oldest"])}<th>episode</th>${by("sum of rewards", ["best", "worst"], "")}
        ${columns.map((column) => (column.figure ? by(column.name, ["best", "worst"], column.figure) : html`<th>${column.name}</th>`))}${by("turns", ["longest", "shortest"])}<th>remarks</th><th>compare</th><th>start</th></tr></thead>
      <tbody ref=${body}>${answer.episodes.map((each, i) => html`<${Row} run=${run.name} each=${each} chosen=${i === chosen} columns=${columns} link=${{ list, at: offset + i }} comparison=${comparison} />`)}</tbody></table></div>
      <nav class="tools" aria-label="pages">${offset > 0 ? html`<button type="button" onClick=${() => change({ offset: Math.max(0, offset - PAGE) })}>Previous 50</button>` : null}
      ${offset + PAGE < answer.count ? html`<button type="button" onClick=${() => change({ offset: offset + PAGE })}>Next 50</button>` : null}</nav>` : html`<p role="status">looking…</p>`}</section>`;
}
