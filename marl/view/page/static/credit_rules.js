// Choice of another credit rule for the recorded step, and its comparison with the run's own rule by role.
import { figure, html, share } from "./words.js";
import { useAnswer } from "./store.js";
import { spelled } from "./text.js";
import { Term, useMeanings } from "./meanings.js";

function Kinds({ name, own, kinds, chosen, choose }) {
  const meanings = useMeanings()?.[name] ?? {};
  return html`<label>${name} <select aria-label=${name} value=${chosen} onChange=${(event) => choose(event.target.value)}>
    <option value="">${own} (the run's own)</option>
    ${kinds.filter((each) => each.kind !== own).map((each) => html`<option value=${each.kind} disabled=${each.problem !== ""} title=${each.problem || meanings[each.kind] || null}>${each.kind}</option>`)}</select></label>`;
}

// What the chosen rules do, a sentence each.
function Sentences({ assign, baseline }) {
  const meanings = useMeanings();
  return meanings && html`<p class="faint">assign ${assign}: ${meanings.assign[assign]} Baseline ${baseline}: ${meanings.baseline[baseline]}</p>`;
}

function Unavailable({ assigns, baselines }) {
  const kinds = [...assigns, ...baselines].filter((each) => each.problem);
  if (!kinds.length) return null;
  return html`<details><summary>${kinds.length} other rules, by a command or in other runs</summary><ul class="plain">${kinds.map((each) => html`<li class="faint"><b><${Term} kind=${assigns.includes(each) ? "assign" : "baseline"} name=${each.kind} /></b>: ${spelled(each.problem)}
    ${each.command ? html`; <code>${spelled(each.command)}</code>` : null}</li>`)}</ul></details>`;
}

// `rule` is ASSIGN, /BASELINE or ASSIGN/BASELINE; what it does not name is the run's own.
export function RuleChoice({ run, rule, change, state }) {
  const [assign = "", baseline = ""] = rule.split("/");
  const { answer, error } = useAnswer("rules", { run, assign }, 0, true);
  const set = (first, second) => change({ rule: second ? `${first}/${second}` : first });
  if (!answer) return html`<div class="rule-choice">${error ? html`<p class="warning" role="alert">${spelled(error)}</p>` : html`<p role="status">reading the credit rules…</p>`}</div>`;
  return html`<div class="rule-choice"><p class="tools">credit by <${Kinds} name="assign" own=${answer.assign} kinds=${answer.assigns} chosen=${assign} choose=${(kind) => set(kind, baseline)} />
      <${Kinds} name="baseline" own=${answer.baseline} kinds=${answer.baselines} chosen=${baseline} choose=${(kind) => set(assign, kind)} />
      ${rule && !state.answer && !state.error ? html`<span role="status">computing the credit…</span>` : null}
      ${state.error || state.answer?.problem ? html`<span class="warning" role="alert">${spelled(state.error || state.answer.problem)}</span>` : null}</p>
    <${Sentences} assign=${assign || answer.assign} baseline=${baseline || answer.baseline} /><${Unavailable} assigns=${answer.assigns} baselines=${answer.baselines} /></div>`;
}

// A rule that replaces the baseline alone is written as /BASELINE in addresses and commands.
export const ruleName = (rule) => (rule.startsWith("/") ? `baseline ${rule.slice(1)}` : rule);

function Row({ role, rule, figures, agreement }) {
  if (!figures) return null;
  const agreed = (name, write) => (agreement && name in agreement ? write(agreement[name]) : "");
  return html`<tr><th scope="row">${role}</th><td>${rule}</td><td>${figures.turns}</td><td>${figure(figures.earned)}</td><td>${figure(figures.earned_std)}</td>
    <td>${figure(figures.advantage)}</td><td>${figure(figures.advantage_std)}</td><td>${share(figures.zero)}</td>
    <td>${agreed("sign_agreement", share)}</td><td>${agreed("correlation", figure)}</td></tr>`;
}

export function RuleComparison({ step, judged }) {
  return html`<section aria-label="comparison of the rules"><h4>step ${step} by role: the run's own rule and ${ruleName(judged.rule)}</h4>
    ${judged.differences.length ? html`<ul class="plain">${judged.differences.map((line) => html`<li><code>${spelled(line)}</code></li>`)}</ul><p class="faint">Every other setting is the run's.</p>`
      : html`<p class="faint">This is the run's own rule.</p>`}
    ${judged.notes.map((note) => html`<p class="faint">${spelled(note)}</p>`)}
    <div class="wide wrapped" tabindex="0" role="region" aria-label="credit of the step by role"><table><thead><tr><th>role</th><th>rule</th><th>turns</th><th>mean earned</th><th>standard deviation</th>
      <th>mean advantage</th><th>standard deviation</th><th>advantage 0</th><th>same sign as the run's</th><th>correlation with the run's</th></tr></thead>
    <tbody>${judged.summary.flatMap((each) => [html`<${Row} role=${each.role} rule="the run's own" figures=${each.own} />`,
      html`<${Row} role=${each.role} rule=${ruleName(judged.rule)} figures=${each.other} agreement=${each.agreement} />`])}</tbody></table></div></section>`;
}
