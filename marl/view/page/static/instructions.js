// Versions of learned instructions at the newest checkpoint: origin, fate, scores, and the change of the text.
import { figure, html } from "./words.js";
import { useAnswer } from "./store.js";
import { Written, spelled } from "./text.js";

const bounds = (gain) => (gain ? `${figure(gain[1], true)} [${figure(gain[0])}, ${figure(gain[2])}]` : "–");
// The first version has its full instructions by role, a later one the lines that differ from its parent's.
const text = ({ instructions, diff, role }) => [...Object.entries(instructions).map(([name, written]) => `role ${name}:\n${written}`), ...(diff.length ? [`role ${role}:`, ...diff] : [])].join("\n");

function Versions({ run, learned }) {
  if (learned.problem) return html`<p class="warning" role="alert">${run}: ${spelled(learned.problem)}</p>`;
  const others = learned.count - learned.versions.length;
  const label = `versions of ${spelled(learned.policy)} of run ${run}`;
  return html`<h3>${run}: policy ${spelled(learned.policy)}, step ${learned.step}</h3><p>Version ${learned.incumbent} is in use.${others ? ` ${others} older versions are not shown; marl show ${run} --prompts --whole prints all.` : ""}</p>
    <div class="wide short" tabindex="0" role="region" aria-label=${label}><table><thead><tr><th>version</th><th>from</th><th>search</th><th>fate</th><th>mean score</th><th>starts</th><th>gain</th><th>text, or what changed</th></tr></thead>
    <tbody>${[...learned.versions].reverse().map((each) => html`<tr class=${each.number === learned.incumbent ? "differs" : null}><th scope="row">${each.number}${each.number === learned.incumbent ? " (in use)" : ""}</th><td>${each.parent ?? "–"}</td><td>${each.search || "–"}</td>
      <td class="text">${spelled(each.status)}${each.reason ? `: ${spelled(each.reason)}` : ""}</td><td>${each.mean_score === null ? "–" : figure(each.mean_score)}</td><td>${each.starts}</td><td>${bounds(each.gain)}</td>
      <td class="text">${text(each) ? html`<${Written} text=${text(each)} label="text of version ${each.number}" />` : "–"}</td></tr>`)}</tbody></table></div>`;
}

function OfRun({ run, version }) {
  const { answer, error } = useAnswer("instructions", { run }, version, true);
  if (error) return html`<p class="warning" role="alert">${spelled(error)}</p>`;
  if (answer && !answer.length) return html`<p class="faint">${run} has no checkpoint yet.</p>`;
  return answer ? answer.map((learned) => html`<${Versions} key=${learned.policy} run=${run} learned=${learned} />`) : null;
}

export function LearnedInstructions({ runs, version }) {
  const learning = runs.filter((run) => run.learns_instructions);
  if (!learning.length) return null;
  return html`<section aria-label="learned instructions"><h2>learned instructions</h2>${learning.map((run) => html`<${OfRun} key=${run.name} run=${run.name} version=${version} />`)}
    <p class="faint">Gain: over the version that was in use, on starts that did not choose the version, with its 97.5 % interval; a version is adopted if the lower bound is above 0.</p></section>`;
}
