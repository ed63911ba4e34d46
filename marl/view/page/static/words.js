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
// Values that outlive a reload of the tab. A page in a sandbox, as some mail programs show a report, has no storage.
export const remembered = (name) => { try { return JSON.parse(sessionStorage.getItem(name)); } catch { return null; } };
export const remember = (name, value) => { try { sessionStorage.setItem(name, JSON.stringify(value)); } catch { /* forgotten */ } };
export const useLayoutEffect = globalThis.htmPreact.useLayoutEffect;
export const useRef = globalThis.htmPreact.useRef;
export const useMemo = globalThis.htmPreact.useMemo;

// Greatest absolute value of finite numbers, at least `least`. `Math.max(...many)` would overflow the stack.
export const greatestSize = (numbers, least = 0) => numbers.reduce((size, each) => (each !== null && Number.isFinite(each) ? Math.max(size, Math.abs(each)) : size), least);

// Returns the first `count` of many parts, and more of them after each frame, so that a long list never blocks the page.
export function useGrowing(total, at_once, version) {
  const [shown, show] = useState({ version, count: at_once });
  const count = shown.version === version ? shown.count : at_once;
  useEffect(() => {
    if (count >= total) return undefined;
    const timer = setTimeout(() => show({ version, count: count + at_once }), 0);
    return () => clearTimeout(timer);
  }, [count, total, version]);
  return Math.min(count, total);
}

// Colours of runs and roles come from the server (marl/view/colours.py), so that plots have the same.

// Kinds of edges: colour and meaning.
export const KINDS = {
  heard: ["#2a8fd0", "passed on in its own words"],
  told: ["#1aa57d", "passed on by the game"],
  posed: ["#e0691a", "posed the problem"],
  gated: ["#8a8f98", "decided who speaks or listens"],
  tool: ["#cc79a7", "called the tool, or the tool's answer"],
  self: ["#a08c00", "the reader's own turn"],
};

// The server sends numbers that JSON lacks as texts: "NaN", "Infinity", "-Infinity".
export const value = (number) => (number === null || number === undefined ? null : Number(number));

// Making a format is slow, and long answers have tens of thousands of numbers.
const WHOLE = new Intl.NumberFormat("en");

// The one format of numbers, also of the terminal (marl/view/number_format.py): whole numbers in full, others with four digits.
// What is smaller than 1e-15 is a remainder of rounding, and is written as 0.
export function figure(number, signed = false) {
  const exact = value(number);
  if (exact === null) return "–";
  const known = Math.abs(exact) < 1e-15 ? 0 : exact;
  const size = Math.abs(known);
  let text = String(known);
  if (Number.isInteger(known) && size < 1e15) text = WHOLE.format(known);
  else if (Number.isFinite(known)) text = size >= 1e6 || size < 1e-4 ? known.toExponential(2) : String(Number(known.toPrecision(4)));
  return (signed && known > 0 ? "+" : "") + text.replaceAll("-", "−");
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
