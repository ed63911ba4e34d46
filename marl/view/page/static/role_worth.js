// What each role of a team is worth: answers that it corrected or spoilt, and the measures with and without it.
import { figure, html } from "./words.js";
import { spelled } from "./text.js";

const name = ({ scope, role }) => `${role}${scope.split("/").length > 2 ? ` in ${scope.split("/")[1]}` : ""}`;
const between = ({ low, high }) => (low === null ? "" : ` [${figure(low)}, ${figure(high)}]`);
// The interval of the difference does not contain 0.
const isClear = ({ low, high }) => low !== null && (low > 0 || high < 0);

function Corrections({ runs }) {
  const rows = runs.flatMap((run) => run.corrections.map((each) => ({ ...each, run: run.name })));
  if (!rows.length) return null;
  return html`<div class="wide" tabindex="0" role="region" aria-label="table of corrections"><table><thead><tr><th>run</th><th>role</th><th>corrected wrong answers</th><th>spoilt right answers</th><th>step</th></tr></thead>
    <tbody>${rows.map((each) => html`<tr><td>${each.run}</td><th scope="row">${spelled(name(each))}</th><td>${each.fixed} of ${each.wrong}</td><td>${each.spoilt} of ${each.right}</td><td>${each.step}</td></tr>`)}</tbody></table></div>
    <p class="faint">Of the role before it, on the held-out starts of the newest evaluation.</p>`;
}

function WithAndWithout({ runs }) {
  const rows = runs.flatMap((run) => run.without_roles.filter((each) => !/_(fixes|breaks)$/.test(each.measure)).map((each) => ({ ...each, run: run.name })));
  if (!rows.length) return html`<p class="faint">What a team loses without a role: <code>marl eval RUN --without ROLE</code> measures it and adds it here.</p>`;
  return html`<div class="wide" tabindex="0" role="region" aria-label="table of measures without a role"><table><thead><tr><th>run</th><th>role</th><th>measure</th><th>with it</th><th>without it</th><th>difference [95 %, paired]</th><th>starts</th><th>step</th></tr></thead>
    <tbody>${rows.map((each) => html`<tr><td>${each.run}</td><th scope="row">${spelled(name(each))}</th><td>${spelled(each.measure)}</td><td>${figure(each.present)}</td><td>${figure(each.absent)}</td>
      <td>${isClear(each) ? html`<b>${figure(each.worth, true)}</b>` : figure(each.worth, true)}${between(each)}</td><td>${figure(each.episodes)}</td><td>${figure(each.checkpoint)}</td></tr>`)}</tbody></table></div>
    <p class="faint">Without a role, its seats pass on what they read. Bold: the interval does not contain 0.</p>`;
}

export function RoleWorth({ runs }) {
  if (!runs.some((run) => run.corrections.length || run.without_roles.length)) return null;
  return html`<section aria-label="worth of each role"><h2>worth of each role</h2><${Corrections} runs=${runs} /><${WithAndWithout} runs=${runs} /></section>`;
}
