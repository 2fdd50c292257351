"use strict";
const byId = (id) => document.getElementById(id);
const form = byId("form"), status = byId("status"), choice = byId("submodel");
const TITLES = {
  picture: "What is in the picture?",
  text: "What kind of text is it?",
  row: "What follows from the row?",
  series: "What follows from the series?",
  array: "What does the network give?",
};
let model = null;
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
const number = (n) => String(Number(n.toPrecision(6)));
const completes = () => model.kind === "next-token" && model.about === "text";

const measured = (submodel) => {
  const { name, percent } = model.metrics[0];
  const value = submodel.values[name];
  if (value === undefined) return "";
  return percent ? `, ${(100 * value).toFixed(1)} % ${name}` : `, ${name} ${number(value)}`;
};

const knows = () => {
  const classes = model.classes;
  if (!classes.length) return completes() ? "it goes on with a text." : `it takes ${model.takes}.`;
  return `it knows ${classes.length} classes (${classes.slice(0, 12).join(", ")}${classes.length > 12 ? ", …" : ""}).`;
};

const describe = (described) => {
  model = described;
  byId("title").textContent = completes() ? "How does the text go on?" : TITLES[model.about] ?? "Ask the model";
  document.title = `${byId("title").textContent} – nefl`;
  byId("about").textContent = `${model.model}, trained on ${model.data}: ${knows()}`;
  byId("picture-row").hidden = model.about !== "picture";
  byId("text-row").hidden = model.about === "picture";
  if (!["picture", "text"].includes(model.about)) byId("text-label").textContent = `One ${model.about}: ${model.takes}`;
  byId("text").value = model.example;
  byId("wish-row").hidden = !completes();
  form.hidden = false;
  const last = model.submodels.at(-1);
  option("", model.submodels.length > 1 ? `The full model (${last.number})` : `Submodel ${last.number}`);
  if (model.submodels.length === 1) return;
  option("limit", "The largest submodel that is fast enough");
  for (const s of model.submodels) {
    option(String(s.number), `Submodel ${s.number}: ${count(s.params)} parameters${measured(s)}`);
  }
};

const fill = (headings, rows) => {
  byId("table").hidden = !rows.length;
  byId("head").replaceChildren(...headings.map((heading) => {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = heading;
    return cell;
  }));
  const body = byId("rows");
  body.replaceChildren();
  for (const cells of rows) {
    const row = body.insertRow();
    for (const cell of cells) row.insertCell().textContent = cell;
  }
};

const share = (probability) => `${(100 * probability).toFixed(1)} %`;

const listed = (answer) => {
  if (answer.classes) return [answer.class, share(answer.classes[0].probability)];
  return ["", answer.value === undefined ? JSON.stringify(answer.outputs).slice(0, 400) : number(answer.value)];
};

const tell = (answer) => {
  byId("going-on").hidden = !completes();
  if (answer.answers) {
    fill(["Number", "Answer", ""], answer.answers.map((each, place) => [place + 1, ...listed(each)]));
    return `${answer.answers.length} answers`;
  }
  if (answer.classes) {
    fill(["Class", "Probability"], answer.classes.map((c) => [c.name, share(c.probability)]));
    return `It looks like: ${answer.class}`;
  }
  fill([], []);
  if (completes()) {
    byId("going-on").textContent = byId("text").value + answer.text;
    return answer.ended_by === "time" ? `${answer.tokens} tokens in the time there is` : `${answer.tokens} tokens`;
  }
  if (answer.value !== undefined) return `It looks like: ${number(answer.value)}`;
  fill(["", "Outputs"], [listed(answer)]);
  return "The network’s outputs";
};

const show = (answer, file) => {
  if (shown) URL.revokeObjectURL(shown);
  shown = file ? URL.createObjectURL(file) : "";
  byId("preview").hidden = !file;
  if (file) byId("preview").src = shown;
  const late = answer.fits ? "" : "; even the smallest is slower than you asked";
  byId("caption").textContent =
    `Submodel ${answer.submodel} answered in ${answer.latency_ms.toFixed(2)} ms${late}`;
  byId("result").hidden = false;
  say(tell(answer));
};

const query = () => {
  const asked = new URLSearchParams();
  if (choice.value === "limit") asked.set("fits", `latency<${byId("limit").value}ms`);
  else if (choice.value) asked.set("submodel", choice.value);
  if (completes()) for (const name of ["length", "temperature", "seed"]) asked.set(name, byId(name).value);
  return asked.size ? `?${asked}` : "";
};

choice.addEventListener("change", () => { byId("limit-row").hidden = choice.value !== "limit"; });

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const picture = model.about === "picture" ? byId("picture").files[0] : null;
  const body = picture ?? new Blob([byId("text").value], { type: "text/plain" });
  if (model.about === "picture" && !picture) return say("Choose a picture first.", true);
  if (!body.size) return say(`Write a ${model.about} first.`, true);
  if (body.size > model.max_body) return say(`That is too large: at most ${model.max_body} bytes are taken.`, true);
  const button = form.querySelector("button");
  button.disabled = true;
  say("Looking…");
  try {
    const response = await fetch(`/predict${query()}`, { method: "POST", body });
    const answer = await response.json();
    if (response.ok) show(answer, picture);
    else say(answer.error, true);
  } catch {
    say("The server did not answer. Is it still running?", true);
  } finally {
    button.disabled = false;
  }
});

fetch("/model").then((r) => r.json()).then(describe).catch(() => say("The server did not answer.", true));
