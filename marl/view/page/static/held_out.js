// Episodes from equal held-out starts before and after training, side by side.
import { address, figure, html, stay, value } from "./words.js";
import { atHand, episodeQuery, live, useAnswer } from "./store.js";
import { spelled, Written } from "./text.js";
import { comparisonAddress } from "./comparison.js";
import { EpisodeLink } from "./run_state.js";

const RIGHT = ["success", "correct"];

const Mark = ({ holds }) => html` <b class=${holds ? "good" : "warning"}>${holds ? "✓ right" : "✗ wrong"}</b>`;

// `name`: the compared figure; `judged`: true if it says whether an answer is right; `to`: the episode that is opened.
function Played({ title, played, name: chosen, judged, to }) {
  if (!played) return html`<div><h4>${title}</h4><p class="faint">not recorded</p></div>`;
  const figures = [...Object.entries(played.measures), ...Object.entries(played.returns).map(([agent, paid]) => [`return of ${agent}`, paid])];
  return html`<div><h4>${title}${judged && compared(played, chosen) !== null ? html`<${Mark} holds=${compared(played, chosen) === 1} />` : null} <${EpisodeLink} to=${to}>open the episode<span class="unseen"> ${to.episode} ${title}</span><//></h4><p>${figures.map(([name, number], i) => html`${i ? ", " : ""}${html`<${name === chosen ? "b" : "span"}>${spelled(name)} ${figure(number)}<//>`}`)}</p>
    ${played.turns.map((turn) => html`<div class="message"><span class="speaker">${spelled(turn.agent)}</span><div><${Written} text=${turn.text} label="completion of ${turn.agent}, ${title}" />
      ${turn.action === null ? html`<p class="warning">could not be read</p>` : null}</div></div>`)}</div>`;
}

const RETURNS = "sum of returns";

// Number of a held-out episode that is compared: a measure, or the sum of its returns.
function compared(played, name) {
  if (!played) return null;
  if (name === RETURNS) return Object.values(played.returns).reduce((sum, paid) => sum + value(paid), 0);
  return name in played.measures ? value(played.measures[name]) : null;
}

const CHANGES = { better: (before, after) => after > before, worse: (before, after) => after < before, same: (before, after) => after === before };

// True for a measure of only 0 and 1 that tells right from wrong; of others, 1 need not be good.
const isJudgement = (episodes, name) => RIGHT.includes(name) && episodes.every((each) => [each.before, each.after].every((played) => [0, 1, null].includes(compared(played, name))));

// The episodes from the lowest figure after training to the highest; those without one stand last.
function worstFirst(episodes, name) {
  const size = (each) => compared(each.after, name) ?? Infinity;
  return [...episodes].sort((a, b) => (size(a) === size(b) ? 0 : size(a) - size(b)));
}

// Starts whose figure rose, fell or stayed, by the name of the change.
function changesOf(episodes, name) {
  const pairs = episodes.map((each) => [each, compared(each.before, name), compared(each.after, name)]).filter(([, before, after]) => before !== null && after !== null);
  const groups = Object.fromEntries(Object.entries(CHANGES).map(([change, holds]) => [change, pairs.filter(([, before, after]) => holds(before, after)).map(([each]) => each)]));
  const words = isJudgement(episodes, name) ? { better: "now right", worse: "now wrong" } : { better: "higher", worse: "lower" };
  return { groups, words: { ...words, same: "as before" }, count: pairs.length };
}

function Summary({ run, query, answer, names, name, change }) {
  const { groups, words, count } = changesOf(answer.episodes, name);
  const link = (kind) => html`<a href=${address("held_out", { ...query, run: run.name, change: query.change === kind ? "" : kind })} aria-current=${query.change === kind ? "true" : null}>${groups[kind].length} ${words[kind]}</a>`;
  return html`<p class="tools"><label>by <select value=${name} onChange=${(event) => change({ figure: event.target.value, change: "" })}>${names.map((each) => html`<option value=${each}>${each}</option>`)}</select></label>
    <b>held-out, step ${answer.before} to ${answer.after}:</b> ${link("better")}${link("worse")}${link("same")}<span class="faint">of ${count} starts played in both</span>
    ${query.change ? html`<a href=${address("held_out", { ...query, run: run.name, change: "" })}>all</a>` : null}</p>`;
}

// In a report: how many of the played episodes it holds whole.
function Openable({ sides }) {
  const count = sides.filter(atHand).length;
  if (live || count === sides.length) return null;
  return html`<p class="faint">This report holds ${count} of these ${sides.length} episodes in full, those with a link, first those that changed; marl view opens all.</p>`;
}

function Pair({ run, answer, each, name: chosen, judged }) {
  const side = (name) => episodeQuery({ run: run.name, step: answer[name], episode: each.episode, held_out: true, game: each.game });
  const [before, after] = [side("before"), side("after")];
  const both = each.before && answer.before !== answer.after && atHand(before) && atHand(after);
  return html`<article class="turn" aria-label=${each.episode}><h3>${each.game ? `${each.game}, ` : ""}${each.episode}${each.answer ? html` <small>answer ${spelled(each.answer)}</small>` : null}
      ${both ? html` <small><a href=${comparisonAddress(before, after)}>both side by side<span class="unseen">, ${each.episode}</span></a></small>` : null}</h3>
    <${Written} text=${each.start} label="start" /><div class="side-by-side"><${Played} title="after step ${answer.before}" played=${each.before} name=${chosen} judged=${judged} to=${before} /><${Played} title="after step ${answer.after}" played=${each.after} name=${chosen} judged=${judged} to=${after} /></div></article>`;
}

export function HeldOutPage({ run, query, version }) {
  const asked = live ? { run: run.name, before: query.before || "", after: query.after || "" } : { run: run.name };
  const { answer, error } = useAnswer("held_out", asked, version);
  const change = (changes) => stay("held_out", { ...query, run: run.name, ...changes });
  if (error) return html`<h2>held-out examples of ${run.name}</h2><p class="warning" role="alert">${spelled(error)}</p>`;
  if (!answer) return html`<p role="status">reading the evaluations…</p>`;
  const choice = (name) => html`<label>${name} <select value=${String(answer[name])} disabled=${!live} onChange=${(event) => change({ [name]: event.target.value })}>
    ${answer.steps.map((step) => html`<option value=${String(step)}>step ${step}</option>`)}</select></label>`;
  const measures = [...new Set(answer.episodes.flatMap((each) => Object.keys(each.after.measures)))].sort((a, b) => (b === "success") - (a === "success"));
  const names = [...measures, RETURNS], name = names.includes(query.figure) ? query.figure : names[0];
  const chosen = query.change in CHANGES ? new Set(changesOf(answer.episodes, name).groups[query.change]) : null;
  const judged = isJudgement(answer.episodes, name);
  const listed = query.order === "worst" ? worstFirst(answer.episodes, name) : answer.episodes;
  const order = html`<label>order <select value=${query.order || ""} onChange=${(event) => change({ order: event.target.value })}><option value="">as recorded</option><option value="worst">worst first</option></select></label>`;
  const sides = answer.episodes.flatMap((each) => [...(each.before ? [answer.before] : []), answer.after].map((step) => episodeQuery({ run: run.name, step, episode: each.episode, held_out: true, game: each.game })));
  return html`<section aria-label="held-out examples"><h2>held-out examples of ${run.name}</h2>
    ${answer.steps.length ? html`<p class="tools">${choice("before")}${choice("after")}${order}</p><${Summary} run=${run} query=${query} answer=${answer} names=${names} name=${name} change=${change} /><${Openable} sides=${sides} />` : html`<p>No evaluation on held-out starts was recorded.</p>`}
    ${listed.filter((each) => !chosen || chosen.has(each)).map((each) => html`<${Pair} key="${each.game} ${each.episode}" run=${run} answer=${answer} each=${each} name=${name} judged=${judged} />`)}</section>`;
}
