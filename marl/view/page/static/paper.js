// Charts are pixels, whose colours do not follow the style sheet: before the page is printed they are drawn anew, light.
const drawings = new Set();
let screen = null;  // theme on the screen while the page is printed

// `draw` is called before and after the page is printed, until the returned function is called.
export function onPaper(draw) {
  drawings.add(draw);
  return () => drawings.delete(draw);
}

function print(begins) {
  const root = document.documentElement.dataset;
  if (begins === (screen !== null)) return;
  [screen, root.theme] = begins ? [root.theme ?? "light", "light"] : [null, screen];
  for (const draw of drawings) draw();
}

addEventListener("beforeprint", () => print(true));
addEventListener("afterprint", () => print(false));
matchMedia("print").addEventListener("change", (event) => print(event.matches));
