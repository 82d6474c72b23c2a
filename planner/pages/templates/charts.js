/* Draws the Vega-Lite charts of a page, and keeps them to what the reader filters. */
const charts = new Map();
const LEGEND = 170; /* width of an entry of a legend, in pixels */

/* Draw every chart below root whose specification is in the page; the rows of filtered charts are shared. */
export async function drawCharts(root = document) {
  const { specs, rows } = JSON.parse(root.querySelector("#charts").textContent);
  charts.clear();
  for (const box of root.querySelectorAll(".chart")) {
    const spec = structuredClone(specs[box.dataset.chart]);
    spec.config.legend.columns = Math.max(1, Math.floor(box.clientWidth / LEGEND));
    if (spec.data?.name === "rows") spec.datasets = { rows };
    const options = { actions: false, renderer: "svg", ast: true, defaultStyle: false, tooltip: { disableDefaultStyle: true } };
    const { view } = await vegaEmbed(box, spec, options);
    charts.set(box.dataset.chart, { view, filtered: spec.data?.name === "rows" });
  }
  for (const choice of root.querySelectorAll(".filters select")) choice.addEventListener("change", () => filter(root, rows));
  document.documentElement.dataset.drawn = "yes";
}

/* Show only the rows that have every chosen value, in the charts and in the tables. */
async function filter(root, rows) {
  const wanted = [...root.querySelectorAll(".filters select")].filter(s => s.value !== "").map(s => [s.name, s.value]);
  const kept = new Set();
  rows.forEach((row, i) => { if (wanted.every(([name, value]) => row[name] === value)) kept.add(i); });
  for (const line of root.querySelectorAll("tr[data-row]")) line.hidden = !kept.has(Number(line.dataset.row));
  const shown = root.querySelector(".shown");
  if (shown) shown.textContent = `${kept.size} of ${rows.length} shown`;
  for (const { view, filtered } of charts.values()) if (filtered) await view.data("rows", rows.filter((_, i) => kept.has(i))).runAsync();
}
