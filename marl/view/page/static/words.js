// Shared by all modules: Preact, number formats, colours and addresses within the page.

export const html = globalThis.htmPreact.html;
export const render = globalThis.htmPreact.render;
export const useState = globalThis.htmPreact.useState;
export const useEffect = globalThis.htmPreact.useEffect;

// Handles keys from the first render on: `useEffect` runs later, and an early key press would be lost.
export function useKeys(press) {
  globalThis.htmPreact.useLayoutEffect(() => {
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });
}
export const useRef = globalThis.htmPreact.useRef;
export const useMemo = globalThis.htmPreact.useMemo;

// Palette of Okabe and Ito, distinguishable with most colour vision deficiencies.
export const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a6f00", "#888888"];

// Kinds of edges: colour and meaning.
export const KINDS = {
  heard: ["#2a8fd0", "its words were heard"],
  told: ["#1aa57d", "the game told of it"],
  posed: ["#e0691a", "it posed the problem"],
  gated: ["#8a8f98", "it decided that the other speaks, or whom it hears"],
  tool: ["#cc79a7", "it called the tool, or the tool answered it"],
  self: ["#a08c00", "the reader's own turn"],
};

// The server sends numbers that JSON lacks as texts: "NaN", "Infinity", "-Infinity".
export const value = (number) => (number === null || number === undefined ? null : Number(number));

export function figure(number, signed = false) {
  const known = value(number);
  if (known === null) return "–";
  const size = Math.abs(known);
  let text = Number.isFinite(known) && size !== 0 && (size >= 1e6 || size < 1e-4)
    ? known.toExponential(2) : Number.isInteger(known) ? known.toLocaleString("en") : String(Number(known.toPrecision(4)));
  if (!Number.isFinite(known)) text = String(known);
  return (signed && known > 0 ? "+" : "") + text.replace("-", "−");
}

export const share = (number) => (number === null || number === undefined ? "–" : `${(100 * value(number)).toFixed(1)} %`);

export function address(view, query = {}) {
  const known = Object.entries(query).filter(([, each]) => each !== "" && each !== null && each !== undefined);
  const text = new URLSearchParams(known.map(([name, each]) => [name, String(each)])).toString();
  return `#/${view}${text ? `?${text}` : ""}`;
}

export function place(hash) {
  const [view, query] = hash.replace(/^#\/?/, "").split("?");
  return { view: view || "overview", query: Object.fromEntries(new URLSearchParams(query || "")) };
}

export const go = (view, query) => { location.hash = address(view, query); };

// Like `go`, but without a new entry in the browser's history.
export function stay(view, query) {
  history.replaceState(null, "", address(view, query));
  dispatchEvent(new HashChangeEvent("hashchange"));
}

// True during text input, when letters are not shortcuts.
export const typing = (event) => event.ctrlKey || event.metaKey || event.altKey
  || ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
