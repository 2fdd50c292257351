"use strict";
const byId = (id) => document.getElementById(id);
const form = byId("form"), status = byId("status"), choice = byId("submodel");
let maxBody = Infinity;
let shown = "";

const say = (text, wrong = false) => {
  status.textContent = text;
  status.classList.toggle("wrong", wrong);
};

const option = (value, text) => {
  const element = document.createElement("option");
  element.value = value;
  element.textContent = text;
  choice.append(element);
};

const count = (n) => (n >= 1e6 ? `${(n / 1e6).toFixed(1)}M` : `${(n / 1e3).toFixed(0)}K`);

const describe = (model) => {
  maxBody = model.max_body;
  const last = model.submodels.at(-1);
  byId("about").textContent =
    `${model.model}, trained on ${model.data}: it knows ${model.classes.length} classes ` +
    `(${model.classes.slice(0, 12).join(", ")}${model.classes.length > 12 ? ", …" : ""}).`;
  option("", model.submodels.length > 1 ? `The full model (${last.number})` : `Submodel ${last.number}`);
  if (model.submodels.length === 1) return;
  option("limit", "The largest submodel that is fast enough");
  for (const s of model.submodels) {
    const accuracy = s.accuracy === null ? "" : `, ${(100 * s.accuracy).toFixed(1)} % right`;
    option(String(s.number), `Submodel ${s.number}: ${count(s.params)} parameters${accuracy}`);
  }
};

const show = (answer, file) => {
  if (shown) URL.revokeObjectURL(shown);
  shown = URL.createObjectURL(file);
  byId("preview").src = shown;
  const rows = byId("rows");
  rows.replaceChildren();
  for (const { name, probability } of answer.classes) {
    const row = rows.insertRow();
    row.insertCell().textContent = name;
    row.insertCell().textContent = `${(100 * probability).toFixed(1)} %`;
  }
  const late = answer.fits ? "" : "; even the smallest is slower than you asked";
  byId("caption").textContent =
    `Submodel ${answer.submodel} answered in ${answer.latency_ms.toFixed(2)} ms${late}`;
  byId("result").hidden = false;
  say(`It looks like: ${answer.class}`);
};

const query = () => {
  if (choice.value === "limit") return `?fits=${encodeURIComponent(`latency<${byId("limit").value}ms`)}`;
  return choice.value ? `?submodel=${choice.value}` : "";
};

choice.addEventListener("change", () => { byId("limit-row").hidden = choice.value !== "limit"; });

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const file = byId("picture").files[0];
  if (!file) return say("Choose a picture first.", true);
  if (file.size > maxBody) return say(`The picture is too large: at most ${maxBody} bytes are taken.`, true);
  const button = form.querySelector("button");
  button.disabled = true;
  say("Looking…");
  try {
    const response = await fetch(`/predict${query()}`, { method: "POST", body: file });
    const answer = await response.json();
    if (response.ok) show(answer, file);
    else say(answer.error, true);
  } catch {
    say("The server did not answer. Is it still running?", true);
  } finally {
    button.disabled = false;
  }
});

fetch("/model").then((r) => r.json()).then(describe).catch(() => say("The server did not answer.", true));
