/* Asks the server while the form changes: first what the last plan would do, then what is best. */
import "/static/vega.js";
import { drawCharts } from "/static/charts.js";
import { drawTimeline } from "/static/timeline.js";

const form = document.getElementById("ask"), state = document.getElementById("state"), answer = document.getElementById("answer");
const slider = document.getElementById("sizes"), sizes = JSON.parse(slider.dataset.sizes);
const tab = crypto.randomUUID();
let turn = 0, before = null, waiting = 0, overtaken = new AbortController();

/* The value of a field as the server wants it; an empty one is left out. */
function valueOf(field) {
  if (field.dataset.stops) return JSON.parse(field.dataset.stops)[field.value];
  return field.type === "number" || field.type === "hidden" ? Number(field.value) : field.value;
}

/* Fields with a dot in their name are parts of the job or of the pins. */
function asked() {
  const question = { job: {}, pins: {} };
  for (const field of form.elements) {
    if (!field.name || field.value === "") continue;
    const [group, name] = field.name.includes(".") ? field.name.split(".") : [null, field.name];
    (group ? question[group] : question)[name] = valueOf(field);
  }
  return question;
}

/* The slider has the sizes in which the chosen cluster comes; it stays near the size that was chosen. */
function fitSlider() {
  const counts = sizes[form.elements.cluster.value], wanted = Number(form.elements.devices.value);
  const near = counts.reduce((best, n, i) => Math.abs(n - wanted) < Math.abs(counts[best] - wanted) ? i : best, 0);
  slider.max = counts.length - 1;
  slider.value = near;
  readSlider();
}
function readSlider() {
  const count = sizes[form.elements.cluster.value][slider.value];
  form.elements.devices.value = count;
  document.getElementById("devices-text").textContent = count.toLocaleString("en");
  slider.setAttribute("aria-valuetext", `${count} devices`);
}
function readFactors() {
  for (const field of form.querySelectorAll("input[data-stops]")) {
    field.previousElementSibling.textContent = `${valueOf(field)}x`;
    field.setAttribute("aria-valuetext", `${valueOf(field)} times`);
  }
}

function say(text, bad = false) { state.textContent = text; state.classList.toggle("bad", bad); }

async function post(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  const reply = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  return { ok: reply.ok, ...await reply.json() };
}

async function show(found) {
  document.getElementById("title").textContent = document.title = found.title;
  answer.innerHTML = found.html;
  answer.classList.remove("old");
  await drawCharts(answer);
  if (document.getElementById("gantt")) drawTimeline();
}

async function ask() {
  if (!form.reportValidity()) return;
  const mine = ++turn, question = asked();
  overtaken.abort();
  overtaken = new AbortController();
  delete document.documentElement.dataset.drawn;
  answer.classList.add("old");
  say("Searching for the best plan ...");
  if (before) post("/nearby", { asked: question, before }, overtaken.signal).then(near => {
    if (near.text && mine === turn && answer.classList.contains("old")) say(`${near.text} Searching for the best plan ...`);
  }, () => {});
  const start = performance.now();
  try {
    const seconds = () => ((performance.now() - start) / 1000).toFixed(2);
    const first = await post("/answer", { asked: question, tab, turn: mine, first: true }, overtaken.signal);
    if (mine !== turn) return;
    if (!first.ok) { say(first.error, true); return; }
    before = question;
    await show(first);
    if (first.complete) { say(`Answered in ${seconds()} s.`); return; }
    say(`First answer in ${seconds()} s: the best plan so far. Looking at what came close ...`);
    const whole = await post("/answer", { asked: question, tab, turn: mine }, overtaken.signal);
    if (mine !== turn) return;
    if (!whole.ok) { say(whole.error, true); return; }
    await show(whole);
    say(`Answered in ${seconds()} s, with what came close.`);
  } catch (error) {
    if (mine === turn) say(`The server does not answer: ${error.message}`, true);
  }
}

const soon = () => { clearTimeout(waiting); waiting = setTimeout(ask, 250); };
form.addEventListener("submit", event => { event.preventDefault(); ask(); });
form.addEventListener("input", event => {
  if (event.target === slider) readSlider();
  if (event.target === form.elements.cluster) fitSlider();
  readFactors();
  soon();
});
fitSlider();
readFactors();
ask();
