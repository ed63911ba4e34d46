// How good forecasts are, such as a critic's scores: skill, correlation and calibration curve of the newest evaluation.
import { figure, html } from "./words.js";
import { spelled } from "./text.js";

const SIZE = 72;

const where = ({ scope }) => [scope.split("/").length > 2 ? `in ${scope.split("/")[1]}` : "", scope.endsWith("_greedy") ? "greedy" : ""].filter(Boolean).join(", ");
const orNone = (value) => (value === null ? "none" : figure(value, true));

// Mean outcome over mean forecast: a good forecast lies on the diagonal.
function CalibrationCurve({ outcomes, name }) {
  const points = outcomes.map((outcome, bin) => [(bin + 0.5) / outcomes.length, outcome]).filter(([, outcome]) => outcome !== null);
  const words = points.map(([score, outcome]) => `${figure(score)}: ${figure(outcome)}`).join(", ");
  const place = ([score, outcome]) => [(score * SIZE).toFixed(1), ((1 - Math.min(Math.max(outcome, 0), 1)) * SIZE).toFixed(1)];
  return html`<svg width=${SIZE} height=${SIZE} viewBox="-3 -3 ${SIZE + 6} ${SIZE + 6}" role="img" aria-label=${`calibration curve of ${name}, mean outcome by forecast: ${words}`}><title>${words}</title>
    <rect width=${SIZE} height=${SIZE} fill="none" stroke="currentColor" opacity="0.3" /><line x1="0" y1=${SIZE} x2=${SIZE} y2="0" stroke="currentColor" opacity="0.4" stroke-dasharray="3 3" />
    <polyline points=${points.map((point) => place(point).join(",")).join(" ")} fill="none" stroke="currentColor" stroke-width="1.6" />${points.map((point) => html`<circle cx=${place(point)[0]} cy=${place(point)[1]} r="2.4" fill="currentColor" />`)}</svg>`;
}

export function Forecasts({ runs }) {
  const rows = runs.flatMap((run) => run.forecasts.map((each) => [run, each]));
  if (!rows.length) return null;
  const several = runs.length > 1;
  return html`<section aria-label="quality of forecasts"><h2>how good forecasts are</h2>
    <div class="wide wrapped" tabindex="0" role="region" aria-label="table of forecasts"><table><thead><tr>${several ? html`<th>run</th>` : null}<th>forecast</th><th>Brier skill</th><th>correlation</th><th>calibration error</th><th>calibration curve</th><th>after step</th></tr></thead>
      <tbody>${rows.map(([run, each]) => html`<tr>${several ? html`<td>${run.name}</td>` : null}<th scope="row">${spelled([each.name, where(each)].filter(Boolean).join(" "))}</th><td>${orNone(each.brier_skill)}</td><td>${orNone(each.correlation)}</td><td>${figure(each.calibration_error)}</td><td><${CalibrationCurve} outcomes=${each.outcomes} name=${each.name} /></td><td>${figure(each.step)}</td></tr>`)}</tbody></table></div>
    <p class="faint">Held-out starts of the newest evaluation. Brier skill: 1 is perfect, 0 is no better than always saying the mean outcome, less is worse. Calibration curve: mean outcome (up) of the forecasts in each fifth from 0 to 1 (right); on the dashed line they agree.</p></section>`;
}
