// Draws the figures of a report, and answers to its switches. Everything shown comes from the
// JSON in the page; text goes in as text, never as markup.
"use strict";
(() => {
  const content = JSON.parse(document.getElementById("content").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const views = new Map();
  const MOST_SVG = 2000; // marks beyond which a canvas is quicker
  const MOST_ROWS = 3000; // rows of a data table

  const records = (key) => {
    const { length, columns } = content.datasets[key];
    const names = Object.keys(columns);
    const get = names.map((name) => {
      const column = columns[name];
      return Array.isArray(column) ? (i) => column[i] : (i) => column.words[column.at[i]];
    });
    return Array.from({ length }, (_, i) => {
      const record = {};
      names.forEach((name, n) => { const value = get[n](i); if (value !== null) record[name] = value; });
      return record;
    });
  };

  const shown = () => {
    const boxes = [...document.querySelectorAll("input[data-run]")];
    return boxes.length ? boxes.filter((b) => b.checked).map((b) => b.dataset.run) : content.runs;
  };

  const signals = () => {
    const menus = ["measure", "seeds"].map((id) => document.getElementById(id)).filter(Boolean);
    return { shown: shown(), ...Object.fromEntries(menus.map((menu) => [menu.id, menu.value])) };
  };

  const tell = (view) => {
    let told = false;
    for (const [name, value] of Object.entries(signals())) {
      try { view.signal(name, value); told = true; } catch { /* this figure has no such switch */ }
    }
    return told ? view.runAsync() : Promise.resolve();
  };

  async function draw(chart) {
    const figure = content.figures[chart.dataset.figure];
    if (!figure || chart.dataset.state === dark.matches + figure.data) return;
    chart.dataset.state = dark.matches + figure.data;
    const values = records(figure.data);
    views.get(chart)?.finalize();
    const result = await window.vegaEmbed(
      chart.firstElementChild,
      { ...figure.spec, data: { name: "records", values } },
      {
        mode: "vega-lite", ast: true, actions: false, defaultStyle: false,
        renderer: values.length > MOST_SVG ? "canvas" : "svg",
        config: content.themes[dark.matches ? "dark" : "light"],
        tooltip: { disableDefaultStyle: true },
      },
    );
    views.set(chart, result.view);
    await tell(result.view);
    chart.dataset.ready = "yes";
  }

  const near = (chart) => {
    const { top, bottom } = chart.getBoundingClientRect();
    return bottom > -window.innerHeight && top < 2 * window.innerHeight;
  };
  const nearFirst = (list) => [...list.filter(near), ...list.filter((chart) => !near(chart))];

  // What is in sight answers first; a switch that moves again starts over.
  let telling = 0;
  async function tellAll() {
    const mine = ++telling;
    for (const chart of nearFirst([...views.keys()])) {
      if (mine !== telling) return;
      await tell(views.get(chart));
      await new Promise((go) => soon(go));
    }
  }

  const charts = () => [...document.querySelectorAll(".chart[data-figure]")];
  // A page that is printed at once is never idle, so waiting has an end.
  const idle = window.requestIdleCallback;
  const soon = (go) => (idle ? idle(go, { timeout: 100 }) : setTimeout(go, 30));

  // What is in sight is drawn first; the rest follows, so that printing finds all of it.
  async function drawAll() {
    document.body.classList.toggle("dark-charts", dark.matches);
    for (const chart of nearFirst(charts())) {
      await new Promise((go) => soon(go));
      await draw(chart);
    }
    document.body.dataset.drawn = "yes";
  }

  function table(key) {
    const rows = records(key);
    const names = Object.keys(content.datasets[key].columns);
    const element = document.createElement("table");
    const line = (parent, kind, texts) => {
      const row = parent.insertRow();
      for (const text of texts) {
        const cell = document.createElement(kind);
        cell.textContent = text ?? "";
        if (kind === "th") cell.scope = "col";
        row.append(cell);
      }
    };
    const { field, name: called } = content.metric;
    line(element.createTHead(), "th", names.map((name) => (name === field ? called : name)));
    const body = element.createTBody();
    for (const row of rows.slice(0, MOST_ROWS)) line(body, "td", names.map((name) => row[name]));
    if (rows.length > MOST_ROWS) {
      element.createCaption().textContent = `the first ${MOST_ROWS} of ${rows.length} rows`;
    }
    return element;
  }

  const short = (value) => {
    for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["K", 1e3]]) {
      if (value >= size) return (value / size).toPrecision(3) + " " + unit;
    }
    return String(Math.round(value));
  };

  // The mean over seeds of each submodel, as the figures have it.
  function means(rows) {
    const each = document.getElementById("seeds")?.value === "each";
    const groups = new Map();
    const { field, percent } = content.metric;
    const places = (value) => Number(percent ? value.toFixed(2) : value.toPrecision(4));
    for (const row of rows.filter((r) => r[field] !== undefined)) {
      const drawn = each ? row.run : row.line;
      const key = JSON.stringify([drawn, row.submodel]);
      const group = groups.get(key) ?? { ...row, drawn, sum: 0, count: 0 };
      groups.set(key, { ...group, sum: group.sum + row[field], count: group.count + 1 });
    }
    return [...groups.values()].map((g) => ({ ...g, score: places(g.sum / g.count) }));
  }

  // The best submodel of each line that a budget allows.
  function pick() {
    const slider = document.getElementById("budget");
    if (!slider) return;
    const kind = document.getElementById("budget-kind").value;
    const rows = means(records(content.costs).filter((r) => shown().includes(r.run)));
    const costs = records(content.costs).map((r) => r[kind]);
    const [low, high] = [Math.min(...costs), Math.max(...costs)];
    const budget = slider.value === slider.max ? high : low * (high / low) ** (slider.value / 100);
    const { name, better, percent } = content.metric;
    const gain = better === "up" ? (a, b) => a.score - b.score : (a, b) => b.score - a.score;
    const best = new Map();
    for (const row of rows) {
      const known = best.get(row.drawn);
      if (row[kind] <= budget * 1.000001 && (!known || gain(row, known) > 0)) best.set(row.drawn, row);
    }
    const order = [...best.values()].sort((a, b) => gain(b, a));
    slider.setAttribute("aria-valuetext", `${short(budget)} ${kind}`);
    document.getElementById("budget-value").textContent = `${short(budget)} ${kind}`;
    const list = document.getElementById("budget-picks");
    list.replaceChildren(...order.map((row) => {
      const item = document.createElement("li");
      item.textContent = `${row.drawn}: submodel ${row.submodel}, ${name} ${row.score}${percent ? " %" : ""} with ${short(row[kind])} ${kind}`;
      return item;
    }));
  }

  document.addEventListener("change", (event) => {
    if (event.target.matches("#runs-all")) {
      for (const box of document.querySelectorAll("input[data-run]")) box.checked = event.target.checked;
    }
    if (event.target.matches("input, select")) {
      pick();
      tellAll();
    }
  });
  document.addEventListener("input", (event) => { if (event.target.id === "budget") pick(); });
  document.addEventListener("toggle", (event) => {
    const place = event.target.querySelector?.(":scope > [data-table]");
    if (event.target.open && place && !place.hasChildNodes()) place.append(table(place.dataset.table));
  }, true);
  dark.addEventListener("change", drawAll);

  // A page that is watched asks for what is new, and keeps its switches.
  let version = content.version;
  async function refresh() {
    try {
      const answer = await fetch(`content?seen=${encodeURIComponent(version)}`);
      if (answer.status === 200) {
        const fresh = await answer.json();
        const names = (given) => Object.keys(given.figures).join() + given.outline;
        if (names(fresh.content) !== names(content)) {
          window.location.reload();
          return;
        }
        version = fresh.content.version;
        const old = content.figures;
        Object.assign(content, fresh.content);
        const off = new Set([...document.querySelectorAll("input[data-run]")].filter((b) => !b.checked).map((b) => b.dataset.run));
        for (const [id, html] of Object.entries(fresh.parts)) {
          const part = document.getElementById(id);
          if (part) part.innerHTML = html; // escaped by the server that made this page
        }
        for (const box of document.querySelectorAll("input[data-run]")) box.checked = !off.has(box.dataset.run);
        for (const [chart, view] of views) {
          const figure = content.figures[chart.dataset.figure];
          if (JSON.stringify(figure.spec) !== JSON.stringify(old[chart.dataset.figure].spec)) {
            chart.dataset.state = "";
            await draw(chart);
            continue;
          }
          chart.dataset.state = dark.matches + figure.data;
          await view.data("records", records(figure.data)).runAsync();
        }
        pick();
      }
      document.getElementById("live").textContent = `live, ${version ? "up to date" : ""} ${new Date().toLocaleTimeString()}`;
    } catch {
      document.getElementById("live").textContent = "no longer live: nefl watch has ended";
    }
    setTimeout(refresh, 2000);
  }

  pick();
  drawAll().then(() => { if (content.live) refresh(); });
})();
