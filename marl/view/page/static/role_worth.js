// What each role of a team is worth: answers that it corrected or spoilt, and the measures with and without it.
import { figure, html } from "./words.js";
import { spelled } from "./text.js";

const name = ({ scope, role }) => `${role}${scope.split("/").length > 2 ? ` in ${scope.split("/")[1]}` : ""}`;
const between = ({ low, high }) => (low === null ? "" : ` [${figure(low)}, ${figure(high)}]`);
// The interval of the difference does not contain 0.
const isClear = ({ low, high }) => low !== null && (low > 0 || high < 0);

// A table whose first columns say which run and which role; the run's is left out where there is only one.
function RoleTable({ label, columns, rows, several }) {
  return html`<div class="wide wrapped" tabindex="0" role="region" aria-label=${label}><table><thead><tr>${several ? html`<th>run</th>` : null}<th>role</th>${columns.map((words) => html`<th>${words}</th>`)}</tr></thead>
    <tbody>${rows.map(([run, each, ...cells]) => html`<tr>${several ? html`<td>${run.name}</td>` : null}<th scope="row">${spelled(name(each))}</th>${cells.map((cell) => html`<td>${cell}</td>`)}</tr>`)}</tbody></table></div>`;
}

function Corrections({ runs }) {
  const rows = runs.flatMap((run) => run.corrections.map((each) => [run, each, each.wrong ? `${each.fixed} of ${each.wrong}` : "none was wrong", each.right ? `${each.spoilt} of ${each.right}` : "none was right", each.step]));
  if (!rows.length) return null;
  return html`<${RoleTable} label="table of corrections" columns=${["wrong answers corrected", "right answers spoilt", "after step"]} rows=${rows} several=${runs.length > 1} />
    <p class="faint">Answers of the role before it, on the held-out starts of the newest evaluation.</p>`;
}

function WithAndWithout({ runs }) {
  const worth = (each) => html`${isClear(each) ? html`<b>${figure(each.worth, true)}</b>` : figure(each.worth, true)}${between(each)}`;
  const rows = runs.flatMap((run) => run.without_roles.map((each) => [run, each, spelled(each.measure), worth(each), figure(each.present), figure(each.absent), figure(each.episodes), figure(each.checkpoint)]));
  if (!rows.length) return html`<p class="faint">What a team loses without a role: <code>marl eval RUN --without ROLE</code> measures it and adds it here.</p>`;
  return html`<${RoleTable} label="table of measures without a role" columns=${["measure", "difference", "with it", "without it", "starts", "after step"]} rows=${rows} several=${runs.length > 1} />
    <p class="faint">Difference: the mean of the measure with the role minus the mean without it, on the same held-out starts, with its 95 % interval; bold if the interval does not contain 0. A seat without its role passes on what it read.</p>`;
}

export function RoleWorth({ runs }) {
  if (!runs.some((run) => run.corrections.length || run.without_roles.length)) return null;
  return html`<section aria-label="worth of each role"><h2>what each role is worth</h2><${Corrections} runs=${runs} /><${WithAndWithout} runs=${runs} /></section>`;
}
