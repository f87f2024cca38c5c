"use strict";
// The fields of the page make a question; the server answers as `simgpt predict` does. At most one
// question is under way: what changes meanwhile is asked when it is answered.

const START = {
  model: "llama-3.1-70b", machine: "dgx-h100", devices: "512", stack: "megatron-core",
  batch: "512", tp: 4, pp: 4, mbs: 1, sp: "true",
};
const SIZES = [ // key, label, explanation, largest exponent of the slider
  ["tp", "tp", "tensor parallelism: each matrix split over so many devices", 6],
  ["pp", "pp", "pipeline stages", 6],
  ["vpp", "vpp", "chunks of layers that each pipeline stage holds in turns", 4],
  ["z", "z", "weights sharded over so many devices (FSDP)", 12],
  ["y", "y", "second axis of tensor parallelism, as AxoNN has it", 4],
  ["mbs", "mbs", "micro-batch: sequences that a device takes at a time; empty: its share", 6],
];
const SWITCHES = ["zero", "recompute", "sp", "overlap"];
const OWN_WORDS = { // of those of other frameworks, for what has a field here
  x: "tp", pipe: "pp", interleave: "vpp", micro_batch: "mbs", sequence_parallel: "sp",
  fsdp: "zero", hsdp: "zero",
};
const DELAY_MS = 150, TRIES = 5;

const at = (id) => document.getElementById(id);
let underWay = false, isDue = false, timer = 0, last = null;

/** The answer to a question; a server that is busy is asked again, a few times. */
async function post(name, body) {
  for (let tries = 1; ; tries += 1) {
    const answer = await fetch(name, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
    });
    if (answer.status !== 503 || tries === TRIES) return answer.json();
    const wait = 1000 * Number(answer.headers.get("Retry-After"));
    await new Promise((done) => setTimeout(done, wait));
  }
}

function buildSizes() {
  for (const [key, label, about, most] of SIZES) {
    const row = element("label", "size");
    row.dataset.field = key;
    row.title = about;
    const slider = element("input"), number = element("input");
    Object.assign(slider, { type: "range", min: 0, max: most, step: 1, value: 0 });
    slider.id = `${key}-slider`;
    slider.setAttribute("aria-label", about);
    Object.assign(number, { type: "number", min: 1, id: key });
    number.placeholder = key === "mbs" ? "all" : "1";
    slider.addEventListener("input", () => { number.value = 2 ** slider.value; due(); });
    number.addEventListener("input", () => { place(key); due(); });
    row.append(element("span", "", label), slider, number);
    at("sizes").append(row);
  }
  const rest = element("div", "size");
  rest.append(
    element("span", "", "dp"), element("span", "soft", "the rest of the devices"),
    element("strong", "value"),
  );
  rest.lastChild.id = "dp";
  at("sizes").append(rest);
}

/** Put a size's slider where its number is, or nearest to it. */
function place(key) {
  at(`${key}-slider`).value = Math.round(Math.log2(Math.max(Number(at(key).value) || 1, 1)));
}

function planText() {
  const words = [];
  for (const [key] of SIZES) {
    const value = at(key).value;
    if (value && (value !== "1" || key === "mbs")) words.push(`${key}=${value}`);
  }
  words.push("dp=rest");
  for (const key of SWITCHES) if (at(key).value) words.push(`${key}=${at(key).value}`);
  const other = at("other").value.trim();
  return words.concat(other ? [other] : []).join(",");
}

function question() {
  const asked = { plan: planText() };
  for (const key of ["model", "machine", "devices", "stack", "sequence"]) {
    asked[key] = at(key).value;
  }
  asked[at("unit").value] = at("batch").value;
  return asked;
}

function due() {
  clearTimeout(timer);
  timer = setTimeout(ask, DELAY_MS);
  at("answer").setAttribute("aria-busy", "true");
}

async function ask() {
  if (underWay) { isDue = true; return; }
  underWay = true;
  isDue = false;
  const asked = question();
  try {
    const answer = await post("predict", asked);
    show(answer);
    if (!answer.error && !isDue) explain(asked);
  } catch {
    show({ error: "the server does not answer: start simgpt serve again", fields: [] });
  }
  underWay = false;
  if (isDue) ask();
  else at("answer").setAttribute("aria-busy", "false");
}

/** Draw where the MFU of a step that was answered goes, unless another was asked for meanwhile. */
async function explain(asked) {
  at("losses").setAttribute("aria-busy", "true");
  const answer = await post("mfu", asked).catch(() => ({ error: "the server does not answer" }));
  if (JSON.stringify(asked) !== JSON.stringify(question())) return;
  drawWaterfall(at("losses").tBodies[0], answer.rows || [[answer.error, "", "", ""]]);
  at("losses").setAttribute("aria-busy", "false");
}

function showError(error, fields) {
  for (const field of document.querySelectorAll("[data-field]")) {
    const names = field.dataset.field.split(" ");
    field.classList.toggle("wrong", names.some((name) => fields.includes(name)));
  }
  at("error").textContent = error;
  at("error").hidden = !error;
  at("result").classList.toggle("old", Boolean(error));
}

function show(answer) {
  showError(answer.error || "", answer.fields || []);
  if (answer.error) return;
  const { prediction, shown } = answer, facts = Object.fromEntries(shown.facts);
  last = prediction;
  at("result").hidden = false;
  const devices = `${prediction.devices.toLocaleString("en")} devices of ${prediction.machine}`;
  at("headline").textContent = `${prediction.model} on ${devices}: `;
  for (const word of prediction.plan_string.split(/(?<=,)/)) { // a line may end after a comma
    at("headline").append(word, element("wbr"));
  }
  at("step").textContent = facts.step;
  at("step").dataset.seconds = prediction.step_s;
  const within = facts["80 % range"];
  at("within").textContent = `80 % range ${within}`;
  at("tokens").textContent = facts["tokens/s"];
  [at("mfu").textContent, at("counts").textContent] = shown.mfu;
  const verdict = prediction.memory.verdict;
  at("fits").textContent = { fits: "yes", tight: "tight" }[verdict] || "no";
  at("fits").className = at("fits").textContent;
  at("fits").title = facts.fits;
  at("room").textContent = `${shown.peak} of ${shown.capacity}`;
  at("fit").disabled = verdict === "fits";
  at("dp").textContent = prediction.plan.dp;
  drawRange(
    at("range"), prediction.low_step_s, prediction.step_s, prediction.high_step_s,
    `step ${facts.step}, 80 % range ${within}`,
  );
  at("basis").textContent = `80 % range: ${shown.range}`;
  drawBar(at("time"), shown.time, `step of ${facts.step}, by what it goes to`);
  drawBar(
    at("memory"), shown.memory, `peak of ${shown.peak} of ${shown.capacity}`,
    prediction.memory.capacity_bytes,
  );
  at("command").textContent = answer.command;
  at("assumed").textContent = answer.assumed.length ? `assumed: ${answer.assumed.join(", ")}` : "";
  at("remarks").replaceChildren(...answer.remarks.map((text) => element("li", "", text)));
  at("found").textContent = "";
  at("choices").hidden = true;
}

/** The batch of the last prediction, in the unit that was chosen. */
function convertBatch() {
  if (!last || !at("batch").value) return;
  const tokens = Math.round(last.tokens_per_s * last.step_s);
  at("batch").value = at("unit").value === "batch" ? last.plan.batch : tokens;
}

async function look(button, name) {
  button.disabled = true;
  at("found").textContent = "predicting …";
  const asked = question();
  try {
    const answer = await post(name, asked);
    if (JSON.stringify(asked) !== JSON.stringify(question())) return;
    showError(answer.error || "", answer.fields || []);
    if (answer.error) { at("found").textContent = ""; return; }
    await showChoices(answer, name);
  } catch {
    at("found").textContent = "the server does not answer";
  } finally {
    button.disabled = button.id === "fit" && at("fits").textContent === "yes";
  }
}

async function showChoices(answer, name) {
  const take = name === "fit" && answer.choices.length === 1;
  if (take) {
    apply(answer.choices[0].change);
    await settled();
  }
  at("found").textContent = answer.sentence;
  at("choices").hidden = take || answer.choices.length === 0;
  at("choices").tBodies[0].replaceChildren(...answer.choices.map(rowOf));
}

function rowOf(choice) {
  const row = element("tr"), taker = element("button", "", "take"), last = element("td");
  taker.type = "button";
  taker.addEventListener("click", () => { apply(choice.change); ask(); });
  last.append(taker);
  row.append(
    element("td", "", choice.words), element("td", "number", choice.step),
    element("td", "number", choice.gain), element("td", "number", choice.memory), last,
  );
  return row;
}

/** Set fields by their names; a plan's key typed among the others is taken out there. */
function apply(change) {
  const words = at("other").value.split(/[,\s]+/).filter(Boolean);
  at("other").value = words.filter((word) => {
    const key = word.split("=")[0];
    return !((OWN_WORDS[key] || key) in change);
  }).join(",");
  for (const [key, value] of Object.entries(change)) {
    at(key).value = value;
    if (SIZES.some(([size]) => size === key)) place(key);
  }
}

/** Ask, and wait until nothing is under way. */
async function settled() {
  await ask();
  while (underWay) await new Promise((done) => setTimeout(done, 20));
}

async function readConfig() {
  const answer = await post("config", { text: at("config").value });
  showError(answer.error || "", answer.error ? ["config"] : []);
  if (answer.error) return;
  at("model").value = answer.model;
  await settled();
  at("remarks").prepend(...answer.remarks.map((text) => element("li", "", text)));
}

async function copy() {
  const text = at("command").textContent;
  try {
    await navigator.clipboard.writeText(text);
    at("copy").textContent = "Copied";
  } catch { // without the permission: selected, for Ctrl-C
    getSelection().selectAllChildren(at("command"));
    at("copy").textContent = "Selected";
  }
  setTimeout(() => { at("copy").textContent = "Copy"; }, 1500);
}

function optionOf(value, text) {
  return Object.assign(element("option", "", text), { value });
}

async function begin() {
  buildSizes();
  const found = await post("choices", {});
  if (found.error) {
    showError(`${found.error}: load this page again`, []);
    return;
  }
  for (const [list, names] of [["models", found.models], ["machines", found.machines]]) {
    const made = element("datalist");
    made.id = list;
    made.append(...names.map((name) => optionOf(name, "")));
    document.body.append(made);
  }
  at("stack").append(optionOf("", "the usual one of the devices"), ...found.stacks.map(([name, title]) => optionOf(name, `${name}: ${title}`)));
  apply(START);
  at("unit").addEventListener("input", convertBatch);
  at("form").addEventListener("submit", (event) => event.preventDefault());
  for (const field of document.querySelectorAll("form input:not(.size input), form select")) {
    field.addEventListener("input", due);
  }
  at("fit").addEventListener("click", () => look(at("fit"), "fit"));
  at("best").addEventListener("click", () => look(at("best"), "best"));
  at("read").addEventListener("click", readConfig);
  at("copy").addEventListener("click", copy);
  await ask();
}

begin();
