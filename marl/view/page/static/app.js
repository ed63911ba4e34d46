// Root of the page: header, keyboard shortcuts, and the view selected by the address.
import { address, go, html, place, remember, remembered, render, stay, typing, useEffect, useKeys, useRef, useState } from "./words.js";
import { ask, live, latency } from "./store.js";
import { spelled } from "./text.js";
import { OverviewPage } from "./overview.js";
import { Missing, State, title } from "./run_state.js";
import { EpisodesPage } from "./episodes.js";
import { ComparePage, EpisodePage } from "./episode.js";
import { StepsPage } from "./steps.js";
import { StatesPage } from "./states.js";
import { HeldOutPage } from "./held_out.js";
import { GlossaryPage, Known } from "./meanings.js";

const REFRESH_MS = 3000;
const WITHOUT_RUN = ["overview", "compare", "glossary"];
const VIEWS = { overview: "runs", episodes: "episodes", steps: "steps", states: "states", held_out: "held-out", glossary: "glossary" };
const KEYS = [["j, ↓ / k, ↑", "next and previous turn or episode"], ["n / p", "next and previous episode"], ["Enter", "open what is chosen"], ["/", "search episodes"],
  ["g r, g e, g s, g i, g h", "go to runs, episodes, steps, information states, held-out examples"], ["t", "light or dark"], ["Esc", "to the list above"], ["?", "this list"]];

function Help({ close }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  return html`<dialog ref=${dialog} onClose=${close} aria-label="help"><p>What a word means: point at it where it is underlined by dots, or open the <a href=${address("glossary")} onClick=${close}>glossary</a>.</p><h2>keyboard</h2>
    <dl class="keys">${KEYS.map(([key, words]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${words}</dd></div>`)}</dl>
    <form method="dialog"><button>close</button></form></dialog>`;
}

// `known`: false if the address names a run that is not served, so that no other run is named in its place.
function Header({ state, view, run, known, turnTheme, help }) {
  return html`<header><h1><a href=${address("overview")}>marl</a></h1>
    <nav aria-label="views">${Object.entries(VIEWS).map(([name, words]) => html`<a href=${address(name, WITHOUT_RUN.includes(name) ? {} : { run: run.name })} aria-current=${name === view ? "page" : null}>${words}</a>`)}</nav>
    ${known && state.runs.length > 1 && !WITHOUT_RUN.includes(view) ? html`<label class="run">run <select value=${run.name} onChange=${(event) => go(view === "episode" ? "episodes" : view, { run: event.target.value })}>
      ${state.runs.map((each) => html`<option value=${each.name}>${each.name}</option>`)}</select></label>` : null}
    ${known && !WITHOUT_RUN.includes(view) ? html`<${State} status=${state.status[run.name]} />` : null}
    <button type="button" onClick=${turnTheme} aria-label="light or dark">◐</button><button type="button" onClick=${help} aria-label="help">?</button></header>`;
}

// Polls the server; `version` increases whenever a run has changed.
function useRuns() {
  const [state, set] = useState({ runs: null, status: {}, rules: null, version: 0, error: "", text: "" });
  useEffect(() => {
    let mounted = true, timer = 0;
    const look = () => Promise.all([ask("runs"), ask("status")]).then(([answer, status]) => {
      const text = JSON.stringify(answer);
      // The status holds ages, which change at every look; only a change of the runs has everything asked for anew.
      set((before) => (before.text === text && !before.error ? { ...before, status } : { ...answer, status, version: before.version + 1, error: "", text }));
    }).catch((error) => set((before) => ({ ...before, error: error.message }))).finally(() => { if (mounted && live) timer = setTimeout(look, Math.max(REFRESH_MS, 10 * latency.ms)); });
    look();
    return () => { mounted = false; clearTimeout(timer); };
  }, []);
  return state;
}

function usePlace() {
  const [now, set] = useState(place(location.hash));
  useEffect(() => {
    const changed = () => set(place(location.hash));
    addEventListener("hashchange", changed);
    changed();  // the address may have changed between the first render and this effect
    return () => removeEventListener("hashchange", changed);
  }, []);
  return now;
}

function useKeyboard(commands) {
  const before = useRef("");
  useKeys((event) => {
    if (event.key === "Escape" && typing(event)) { event.target.blur(); return; }
    if (typing(event) || document.querySelector("dialog[open]")) return;
    const command = commands[`${before.current}${event.key}`] || commands[event.key];
    before.current = event.key === "g" ? "g " : "";
    if (command) { event.preventDefault(); command(); }
  });
}

function useTheme() {
  const system = () => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  // A choice by hand outlives a reload of the tab.
  const [theme, set] = useState(remembered("theme") || system());
  useEffect(() => { document.documentElement.dataset.theme = theme; }, [theme]);
  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)"), changed = () => set(system());
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, []);
  const choose = (chosen) => { remember("theme", chosen); set(chosen); };
  return [theme, () => choose(theme === "dark" ? "light" : "dark")];
}

// After a reload of the tab, scrolls to where the reader was once the page is long enough again.
function useScrollAfterReload() {
  useEffect(() => {
    const left = remembered("scroll");
    const save = () => remember("scroll", { hash: location.hash, y: scrollY });
    addEventListener("pagehide", save);
    let tries = left && left.hash === location.hash && left.y ? 40 : 0, timer = 0;
    const restore = () => {
      if (!tries) return;
      tries -= 1;
      scrollTo(0, left.y);
      if (scrollY < left.y - 1) timer = setTimeout(restore, 50);
    };
    restore();
    const stop = () => { tries = 0; };
    addEventListener("wheel", stop, { passive: true });
    return () => { clearTimeout(timer); removeEventListener("pagehide", save); removeEventListener("wheel", stop); };
  }, []);
}

function View({ state, view, query, run, theme }) {
  if (view === "episodes") return html`<${EpisodesPage} key=${run.name} run=${run} query=${query} version=${state.version} />`;
  if (view === "episode") return html`<${EpisodePage} query=${{ ...query, run: run.name }} rules=${state.rules} />`;
  if (view === "compare") return html`<${ComparePage} query=${query} rules=${state.rules} />`;
  if (view === "steps") return html`<${StepsPage} key=${run.name} run=${run} query=${query} version=${state.version} theme=${theme} rules=${state.rules} />`;
  if (view === "states") return html`<${StatesPage} key=${run.name} run=${run} query=${query} version=${state.version} />`;
  if (view === "glossary") return html`<${GlossaryPage} />`;
  if (view === "held_out") return html`<${HeldOutPage} key=${run.name} run=${run} query=${query} version=${state.version} />`;
  return html`<${OverviewPage} runs=${state.runs} status=${state.status} query=${query} change=${(changes) => stay("overview", { ...query, ...changes })} version=${state.version} theme=${theme} />`;
}

function App() {
  const state = useRuns();
  const { view, query } = usePlace();
  const [theme, turnTheme] = useTheme();
  useScrollAfterReload();
  const [help, setHelp] = useState(false);
  const runs = state.runs || [];
  // A link to an unknown run must not show another run: only a link that names none means the first.
  const wanted = [query.run, ...(view === "compare" ? [query.run2] : [])].filter(Boolean);
  const unknown = wanted.filter((name) => !runs.some((each) => each.name === name));
  const run = runs.find((each) => each.name === query.run) || runs[0];
  useEffect(() => { document.title = title(view, { ...query, run: query.run || run?.name }); });
  const list = useRef({}), heldOut = useRef({});
  if (view === "episodes") list.current = query;  // Esc leads from an episode back to the list with its filters
  if (view === "held_out") heldOut.current = query;
  if (view === "episode" && query.list !== undefined) list.current = Object.fromEntries(new URLSearchParams(query.list));  // also after a reload
  const to = (name) => () => run && go(name, name === "overview" ? {} : { run: run.name });
  const search = () => { if (view !== "episodes") to("episodes")(); setTimeout(() => document.getElementById("filter-text")?.focus(), 50); };
  useKeyboard({ "?": () => setHelp(true), "/": search, t: turnTheme, Escape: () => (view === "episode" && query.held_out ? go("held_out", { ...heldOut.current, run: run?.name }) : view === "episode" ? go("episodes", { ...list.current, run: run?.name }) : to("overview")()), "g r": to("overview"), "g e": to("episodes"), "g s": to("steps"), "g i": to("states"), "g h": to("held_out") });
  if (!run) return html`<main><h1>marl</h1><p role="status">${state.error ? spelled(state.error) : "reading the runs…"}</p></main>`;
  return html`<${Header} state=${state} view=${view} run=${run} known=${!unknown.length} turnTheme=${turnTheme} help=${() => setHelp(true)} />
    ${state.error ? html`<p class="warning" role="alert">the server does not answer: ${spelled(state.error)}</p>` : null}
    <${Known} version=${state.version}><main>${run && unknown.length ? html`<${Missing} names=${unknown} runs=${runs} view=${view} />` : html`<${View} state=${state} view=${view} query=${query} run=${run} theme=${theme} />`}</main><//>
    ${help ? html`<${Help} close=${() => setHelp(false)} />` : null}`;
}

render(html`<${App} />`, document.getElementById("page"));
