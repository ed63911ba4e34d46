// State of a run, titles that name their run, and the sentence for a run that is not served.
import { address, html } from "./words.js";
import { atHand, live } from "./store.js";
import { spelled } from "./text.js";

const WELL = ["training", "ended"];
const WORDS = { overview: "runs", episodes: "episodes", episode: "episode", compare: "two episodes", steps: "steps", states: "information states", held_out: "held-out examples", glossary: "glossary" };

// `status`: state of a run, as `marl status` prints it; ages are those of the last look.
export function State({ status, whole }) {
  if (!status) return null;
  const age = status.row_age ? `newest row ${status.row_age} old` : "no row yet";
  const details = whole ? `, ${age}${status.words && status.state !== "ended" ? ` (${status.words})` : ""}` : "";
  return html`<span class="state-of-run"><b class=${WELL.includes(status.state) ? null : "warning"} title="${spelled(status.words)}">${status.state}</b>${spelled(details)}${whole && !live ? ", when this report was written" : ""}</span>`;
}

// Direction of improvement of a figure, in words.
export const GOALS = { max: "higher is better", min: "lower is better" };

// What an alarm is about, what it says, and its kind with its watched metric, as the closing report names it.
const alarmSubject = (alarm) => `${alarm.subject} ${alarm.role}${alarm.game ? ` in game ${alarm.game}` : ""}`;
export const alarmSentence = (alarm) => `${alarmSubject(alarm)} ${alarm.summary}`;
export const alarmName = (alarm) => spelled(`${alarmSubject(alarm)}: ${alarm.kind}${alarm.metric ? ` (${alarm.metric})` : ""}`);

export const stepRanges = ({ ranges }) => `step${ranges.length === 1 && ranges[0][0] === ranges[0][1] ? "" : "s"} ${ranges.map(([a, b]) => (a === b ? a : `${a}–${b}`)).join(", ")}`;

// Link to an episode, or its name alone in a report without it.
export function EpisodeLink({ to, current, children }) {
  if (!atHand(to)) return html`<span class="faint" title="not in this report">${children}</span>`;
  return html`<a href=${address("episode", to)} aria-current=${current ? "true" : null}>${children}</a>`;
}

export function Missing({ names, runs, view }) {
  const links = runs.map((run) => html`<li><a href=${address(view === "overview" ? "overview" : "episodes", { run: run.name })}>${run.name}</a></li>`);
  return html`<section aria-label="missing run"><h2>no run ${names.map(spelled).join(" and no run ")}</h2>
    <p class="warning" role="alert">The link names ${names.map((name) => `“${spelled(name)}”`).join(" and ")}, which ${live ? "this server does not show" : "is not in this report"}. There ${runs.length === 1 ? "is" : "are"}:</p><ul class="plain">${links}</ul></section>`;
}

// Title of the browser's tab; it names the run, and the episode if one is shown.
export function title(view, query) {
  const episode = (name, run) => `${name ?? ""} of ${run ?? ""}`;
  const words = WORDS[view] || "runs";
  if (words === "runs" || words === "glossary") return `${words} - marl`;
  if (view === "episode") return `${words} ${episode(query.episode, query.run)} - marl`;
  if (view === "compare") return `${episode(query.episode, query.run)} and ${episode(query.episode2, query.run2)} - marl`;
  return `${words} of ${query.run ?? ""} - marl`;
}
