// List of recorded episodes with filters, search and order.
import { address, figure, go, html, stay, typing, useKeys, useRef, useState } from "./words.js";
import { live, useAnswer } from "./store.js";
import { cut, spelled } from "./text.js";

const PAGE = 50;

function Field({ name, label, children }) {
  return html`<label class="field" for="filter-${name}"><span>${label}</span>${children}</label>`;
}

function Choice({ name, label, query, change, choices }) {
  return html`<${Field} name=${name} label=${label}><select id="filter-${name}" value=${query[name] || ""} onChange=${(event) => change({ [name]: event.target.value })}>
    ${choices.map(([value, words]) => html`<option value=${value}>${words}</option>`)}</select><//>`;
}

function Entry({ name, label, query, change, kind = "number" }) {
  return html`<${Field} name=${name} label=${label}><input id="filter-${name}" type=${kind} step="any" value=${query[name] || ""}
    onChange=${(event) => change({ [name]: event.target.value })} /><//>`;
}

function Flag({ name, label, query, change }) {
  return html`<label class="flag"><input type="checkbox" checked=${query[name] === "1"} onChange=${(event) => change({ [name]: event.target.checked ? "1" : "" })} /> ${label}</label>`;
}

function Filters({ run, query, change }) {
  const plain = (list) => list.map((each) => [each, each]);
  const alarms = run.alarms.map((alarm) => [alarm.name, `${alarm.role}: ${alarm.kind}`]);
  return html`<form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}>
    <${Field} name="text" label="words (/)"><input id="filter-text" type="search" value=${query.text || ""} onInput=${(event) => change({ text: event.target.value })} /><//>
    <${Choice} name="role" label="role" query=${query} change=${change} choices=${[["", "any"], ...plain(run.roles)]} />
    ${run.games.length ? html`<${Choice} name="game" label="game" query=${query} change=${change} choices=${[["", "any"], ...plain(run.games)]} />` : null}
    <${Entry} name="first" label="from step" query=${query} change=${change} /><${Entry} name="last" label="to step" query=${query} change=${change} />
    <${Choice} name="figure" label="figure" query=${query} change=${change} choices=${[["", "sum of rewards"], ...run.figures.map((name) => [name, name.startsWith("return/") ? `${name}, sum of its seats` : name])]} />
    <${Entry} name="low" label="at least" query=${query} change=${change} /><${Entry} name="high" label="at most" query=${query} change=${change} />
    ${alarms.length ? html`<${Choice} name="alarm" label="while alarm" query=${query} change=${change} choices=${[["", "any step"], ...alarms]} />` : null}
    <${Choice} name="order" label="order" query=${query} change=${change} choices=${[["", "newest first"], ["oldest", "oldest first"], ["best", "best first"], ["worst", "worst first"], ["longest", "longest first"]]} />
    <${Flag} name="unreadable" label="unreadable turns" query=${query} change=${change} /><${Flag} name="cut_off" label="cut-off turns" query=${query} change=${change} />
    <button type="button" onClick=${() => go("episodes", { run: run.name })}>clear</button></form>`;
}

function Progress({ index }) {
  const words = index.indexed < index.recorded ? `, ${index.indexed} of ${index.recorded} steps indexed so far` : "";
  return html`${words}${index.problems.map((problem) => html`<p class="warning">${spelled(problem)}</p>`)}`;
}

function Row({ run, each, chosen }) {
  const of = (prefix) => Object.entries(each.figures).filter(([name]) => name.startsWith(prefix)).map(([name, number]) => `${name.slice(prefix.length)} ${figure(number, prefix === "agent/")}`).join(", ");
  return html`<tr class=${chosen ? "chosen" : null}><td>${each.step}</td>
    <td><a href=${address("episode", { run, step: each.step, episode: each.episode })}>${each.episode}</a></td>
    <td>${of("agent/") || figure(each.paid, true)}</td><td>${of("measure/")}</td><td>${each.turns}</td>
    <td>${each.unreadable ? html`<span class="warning">${each.unreadable} unreadable</span>` : ""}${each.cut_off ? html` <span class="warning">${each.cut_off} cut off</span>` : ""}</td>
    <td class="start">${spelled(cut(each.start.replace(/\s+/g, " "), 60))}</td></tr>`;
}

export function EpisodesPage({ run, query, version }) {
  const [chosen, choose] = useState(-1);
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
  return html`<section aria-label="episodes"><h2>episodes of ${run.name}</h2><${Filters} run=${run} query=${query} change=${change} />
    ${error ? html`<p class="warning" role="alert">${spelled(error)}</p>` : null}
    ${answer ? html`<p role="status">${answer.count} episodes${live ? "" : `, of ${answer.index.episodes} that the run recorded: this report holds a selection`}<${Progress} index=${answer.index} /></p>
      ${answer.index.recorded === 0 ? html`<p>Nothing was recorded yet; the setting <code>checkpoint.trajectories</code> is the share of steps that are.</p>` : null}
      <div class="wide" tabindex="0" role="region" aria-label="list of episodes"><table class="list"><thead><tr><th>step</th><th>episode</th><th>returns</th><th>measures</th><th>turns</th><th>remarks</th><th>start</th></tr></thead>
      <tbody ref=${body}>${answer.episodes.map((each, i) => html`<${Row} run=${run.name} each=${each} chosen=${i === chosen} />`)}</tbody></table></div>
      <nav class="tools" aria-label="pages">${offset > 0 ? html`<button type="button" onClick=${() => change({ offset: Math.max(0, offset - PAGE) })}>Previous 50</button>` : null}
      ${offset + PAGE < answer.count ? html`<button type="button" onClick=${() => change({ offset: offset + PAGE })}>Next 50</button>` : null}</nav>` : html`<p role="status">looking…</p>`}</section>`;
}
