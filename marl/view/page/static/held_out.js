// Episodes from equal held-out starts before and after training, side by side.
import { figure, html, stay } from "./words.js";
import { live, useAnswer } from "./store.js";
import { spelled, Written } from "./text.js";

function Played({ title, played }) {
  if (!played) return html`<div><h4>${title}</h4><p class="faint">not recorded</p></div>`;
  const figures = [...Object.entries(played.measures), ...Object.entries(played.returns).map(([agent, paid]) => [`return of ${agent}`, paid])];
  return html`<div><h4>${title}</h4><p>${figures.map(([name, number]) => `${spelled(name)} ${figure(number)}`).join(", ")}</p>
    ${played.turns.map((turn) => html`<div class="message"><span class="speaker">${spelled(turn.agent)}</span><div><${Written} text=${turn.text} label="completion of ${turn.agent}, ${title}" />
      ${turn.action === null ? html`<p class="warning">could not be read</p>` : null}</div></div>`)}</div>`;
}

export function HeldOutPage({ run, query, version }) {
  const asked = live ? { run: run.name, before: query.before || "", after: query.after || "" } : { run: run.name };
  const { answer, error } = useAnswer("held_out", asked, version);
  const change = (changes) => stay("held_out", { ...query, run: run.name, ...changes });
  if (error) return html`<h2>held-out examples of ${run.name}</h2><p class="warning" role="alert">${spelled(error)}</p>`;
  if (!answer) return html`<p role="status">reading the evaluations…</p>`;
  const choice = (name) => html`<label>${name} <select value=${String(answer[name])} disabled=${!live} onChange=${(event) => change({ [name]: event.target.value })}>
    ${answer.steps.map((step) => html`<option value=${String(step)}>step ${step}</option>`)}</select></label>`;
  return html`<section aria-label="held-out examples"><h2>held-out examples of ${run.name}</h2>
    ${answer.steps.length ? html`<p class="tools">${choice("before")}${choice("after")}</p>` : html`<p>No evaluation on held-out starts was recorded.</p>`}
    ${answer.episodes.map((each) => html`<article class="turn" aria-label=${each.episode}><h3>${each.game ? `${each.game}, ` : ""}${each.episode}${each.answer ? html` <small>answer ${spelled(each.answer)}</small>` : null}</h3>
      <${Written} text=${each.start} label="start" /><div class="side-by-side"><${Played} title="after step ${answer.before}" played=${each.before} /><${Played} title="after step ${answer.after}" played=${each.after} /></div></article>`)}</section>`;
}
