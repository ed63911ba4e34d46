// Source of the page's data: the server, or the embedded answers in a report.
import { useEffect, useState } from "./words.js";

const element = document.getElementById("answers");

export const live = element === null;

// Answers in a report, by address: gzipped JSON in base64, unpacked before the first request is answered.
let embedded = {};
const unpacked = live ? null : unpack(element.textContent).then((answers) => { embedded = answers; });

async function unpack(base64) {
  const packed = Uint8Array.from(atob(base64), (sign) => sign.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

const key = (path, query) => JSON.stringify([path, ...Object.entries(query).sort(([a], [b]) => (a < b ? -1 : 1))]);

// Response time of the server [ms]: the page polls slow servers less often.
export const latency = { ms: 0 };

export async function ask(path, query = {}) {
  const known = Object.fromEntries(Object.entries(query).filter(([, each]) => each !== null && each !== undefined)
    .map(([name, each]) => [name, String(each)]));
  if (!live) return unpacked.then(() => fromReport(path, known));
  const began = performance.now();
  const response = await fetch(`/api/${path}?${new URLSearchParams(known)}`);
  latency.ms = Math.max(latency.ms / 2, performance.now() - began);
  const answer = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

function fromReport(path, query) {
  if (path === "episodes") return filtered(query);
  const name = key(path, path === "rows" ? { run: query.run } : query);
  if (!(name in embedded)) throw new Error(`Not in this report${selection(query.run)}; open the run with marl view`);
  return embedded[name];
}

// Returns how many of a run's episodes a report holds.
function selection(run) {
  const list = embedded[key("episodes", { run })];
  return list ? ` (${list.episodes.length} of ${list.index.episodes} episodes)` : "";
}

// Query of an episode {run, step, episode}: of a recorded step or, with `held_out`, of the evaluation after a step, in `game` among several.
export const episodeQuery = ({ run, step, episode, held_out: heldOut, game }) => ({ run, step: String(step), episode, ...(heldOut ? { held_out: "1", ...(game ? { game } : {}) } : {}) });

// False for an episode that a report does not hold, so that no link leads to it.
export const atHand = (episode) => live || key("episode", episodeQuery(episode)) in embedded;

// The filters of marl/view/page/episode_filter.py, applied to the few episodes in a report and their texts.
function filtered(query) {
  const all = embedded[key("episodes", { run: query.run })];
  const steps = query.alarm ? alarmSteps(query) : null;
  const chosen = all.episodes.filter((each) => matches(each, query) && (!steps || steps.some(([a, b]) => a <= each.step && each.step <= b)));
  const size = (each) => measured(each, query) ?? -Infinity;
  const newest = (a, b) => b.step - a.step || a.place - b.place, failed = (each) => each.unreadable + each.cut_off;
  const orders = {
    newest, oldest: (a, b) => a.step - b.step || a.place - b.place,
    best: (a, b) => size(b) - size(a) || failed(a) - failed(b) || a.turns - b.turns || newest(a, b),
    worst: (a, b) => size(a) - size(b) || failed(b) - failed(a) || b.turns - a.turns || newest(a, b),
    longest: (a, b) => b.turns - a.turns || newest(a, b), shortest: (a, b) => a.turns - b.turns || newest(a, b),
  };
  chosen.sort(orders[query.order || "newest"]);
  const offset = Number(query.offset || 0);
  const page = chosen.slice(offset, offset + Number(query.limit || 50));
  return { count: chosen.length, episodes: page, index: all.index };
}

function alarmSteps(query) {
  const run = embedded[key("runs", {})].runs.find((each) => each.name === query.run);
  return (run.alarms.find((each) => each.name === query.alarm) || { ranges: [] }).ranges;
}

const measured = (each, query) => query.figure ? each.figures[query.figure] : query.role ? each.figures[`return/${query.role}`] : each.paid;

function matches(each, query) {
  const size = measured(each, query);
  return (!query.role || `turns/${query.role}` in each.figures)
    && (!query.game || each.game === query.game) && (!query.group || each.group === query.group)
    && (!query.start || each.start === query.start)
    && (!query.first || each.step >= Number(query.first)) && (!query.last || each.step <= Number(query.last))
    && (query.unreadable !== "1" || (query.role ? `unreadable/${query.role}` in each.figures : each.unreadable > 0))
    && (query.cut_off !== "1" || each.cut_off > 0)
    && (!query.low || size >= Number(query.low)) && (!query.high || size <= Number(query.high))
    && (!query.text || holds(each, query));
}

function holds(each, query) {
  const episode = embedded[key("episode", { run: query.run, step: String(each.step), episode: each.episode })];
  const text = [episode.start, ...episode.turns.flatMap((turn) => [turn.agent, turn.messages.at(-1)?.content, turn.text])].join("\n").toLowerCase();
  return query.text.toLowerCase().split(/\s+/).filter(Boolean).every((word) => text.includes(word));
}

// Returns {answer, error} of a request, repeated when `version` changes. The last answer stays visible meanwhile,
// and with `keep` also while a different request is pending.
export function useAnswer(path, query, version = 0, keep = false) {
  const [state, set] = useState({ name: "", answer: null, error: "" });
  const name = path ? key(path, query) : "";
  useEffect(() => {
    let wanted = path !== null;
    if (wanted) {
      ask(path, query).then((answer) => wanted && set({ name, answer, error: "" }))
        .catch((error) => wanted && set({ name, answer: null, error: error.message }));
    }
    return () => { wanted = false; };
  }, [name, version]);
  return state.name === name || keep ? state : { name, answer: null, error: "" };
}
