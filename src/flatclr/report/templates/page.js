"use strict";
(async () => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const PALETTE = ["#0b6e99", "#d9730d", "#448361", "#ad1a72", "#6940a5", "#cb912f", "#64748b", "#c4554d", "#2a9d8f", "#8d6e63"];
  const DARK = ["#58b4dd", "#f0994d", "#6fbf8f", "#e06bb0", "#a58be0", "#e3b75f", "#94a3b8", "#ec8f88", "#5cc9bc", "#bc9d92"];
  const SMOOTHED_FROM = 24; // points: fewer are worth seeing as they are
  const shade = window.matchMedia("(prefers-color-scheme: dark)");
  const coarse = window.matchMedia("(pointer: coarse)");
  const several = page.kind === "runs";
  const state = { smoothing: 0.8, axis: "step", log: {}, averaged: false, shown: new Set(page.shown || []), method: null };
  const every = (selector, act, root) => (root || document).querySelectorAll(selector).forEach(act);
  const find = (id) => document.getElementById(id);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const OUTCOME = [[0, "#3b1c8c"], [0.5, "#1f948b"], [1, "#d9a300"]], OUTCOME_DARK = [[0, "#8f8cf2"], [0.5, "#35c2ab"], [1, "#fde55a"]];
  const colour = (i) => (shade.matches ? DARK : PALETTE)[i % PALETTE.length];

  async function unpack(element) {
    const bytes = Uint8Array.from(atob(element.textContent.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    element.remove();
  }

  // values over steps, epochs or minutes

  function along(run, steps) {
    if (state.axis === "epoch" && run.steps_per_epoch) return steps.map((s) => s / run.steps_per_epoch);
    if (state.axis === "minutes" && run.clock.steps.length > 1) return steps.map((s) => interpolated(run.clock, s));
    return steps;
  }

  function interpolated(clock, step) {
    const { steps, minutes } = clock;
    let i = steps.findIndex((s) => s >= step);
    if (i < 0) i = steps.length - 1;
    if (i === 0) return minutes[0];
    const share = (step - steps[i - 1]) / (steps[i] - steps[i - 1]);
    return minutes[i - 1] + Math.min(share, 1) * (minutes[i] - minutes[i - 1]);
  }

  function smoothed(values) {
    // an exponential mean that is not drawn towards zero at its start; gaps stay gaps
    let mean = 0, weight = 0;
    return values.map((value) => {
      if (value === null) return null;
      mean = state.smoothing * mean + (1 - state.smoothing) * value;
      weight = state.smoothing * weight + (1 - state.smoothing);
      return mean / weight;
    });
  }

  const faded = (hex, share) => hex + Math.round(255 * share).toString(16).padStart(2, "0");

  // figures

  function chosen(panel) {
    if (!several) return panel.curves;
    if (!state.averaged || !panel.averaged.length) return panel.curves.filter((curve) => state.shown.has(curve.run));
    const groups = new Set([...state.shown].map((run) => page.runs[run].group));
    return panel.averaged.filter((curve) => groups.has(curve.group));
  }

  function traces(panel) {
    const made = [];
    let plain = 0;
    for (const curve of chosen(panel)) {
      const run = page.runs[curve.run || 0];
      const x = along(run, curve.x);
      const place = several ? (state.averaged && panel.averaged.length ? curve.group : curve.run) : plain;
      const ink = curve.reference ? css("--faint") : colour(place);
      if (!curve.reference) plain += 1;
      const common = { x, type: "scatter", mode: "lines", name: curve.label, connectgaps: false };
      if (curve.low) {
        made.push({ ...common, y: curve.low, line: { width: 0, color: ink }, hoverinfo: "skip", showlegend: false });
        made.push({ ...common, y: curve.high, line: { width: 0, color: ink }, fill: "tonexty", fillcolor: faded(ink, 0.18), hoverinfo: "skip", showlegend: false });
      }
      const smooth = state.smoothing > 0 && !curve.reference && !panel.sparse && !panel.exact && curve.y.length >= SMOOTHED_FROM;
      if (smooth) made.push({ ...common, y: curve.y, line: { width: 1, color: faded(ink, 0.3) }, hoverinfo: "skip", showlegend: false });
      made.push({
        ...common, y: smooth ? smoothed(curve.y) : curve.y, meta: curve.label,
        mode: panel.sparse && !curve.reference ? "lines+markers" : "lines",
        line: { width: curve.reference ? 1.4 : 2, color: ink, dash: curve.reference ? "dash" : "solid" },
        marker: { size: 6, color: ink },
        hovertemplate: several ? "%{meta}<br>%{x:,.4~g}: %{y:.4~g}<extra></extra>" : "%{y:.4~g}",
      });
    }
    return made;
  }

  const isLog = (panel) => (panel.id in state.log ? state.log[panel.id] : panel.log);

  function axis(title, more) {
    return {
      title: { text: title, standoff: 6, font: { size: 11 } }, gridcolor: css("--grid"), zerolinecolor: css("--grid"),
      linecolor: css("--line"), tickfont: { size: 11 }, automargin: true, ...more,
    };
  }

  function valueAxis(panel, drawn) {
    const values = drawn.flatMap((trace) => trace.y).filter((v) => v !== null);
    const positive = values.filter((v) => v > 0);
    if (!isLog(panel) || !positive.length) return axis(panel.unit, { rangemode: panel.zero ? "tozero" : "normal", type: "linear", nticks: 6 });
    const decades = Math.log10(Math.max(...positive) / Math.min(...positive));
    const digits = decades > 3 ? [1] : decades > 1 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 8];
    const every = Math.max(1, Math.ceil(decades / 7)), exponents = Array.from({ length: 61 }, (_, i) => i - 30);
    const ticks = exponents.filter((power) => digits.length > 1 || power % every === 0).flatMap((power) => digits.map((digit) => [digit, power]));
    return axis(panel.unit, { type: "log", tickmode: "array", tickvals: ticks.map(([digit, power]) => digit * 10 ** power), ticktext: ticks.map(tick) });
  }

  function tick([digit, power]) {
    if (power >= -3 && power < 5) return (digit * 10 ** power).toLocaleString("en", { maximumSignificantDigits: 2 });
    return digit === 1 ? `10<sup>${power}</sup>` : `${digit}·10<sup>${power}</sup>`;
  }

  const AXES = { step: "step", epoch: "epoch", minutes: "minutes of training" };
  const ALONE = { displaylogo: false, showSendToCloud: false, plotlyServerURL: "" }; // nothing of a page leaves it
  const OPTIONS = { ...ALONE, responsive: true, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d", "zoomIn2d", "zoomOut2d"] };

  function plain(more) {
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: css("--ink"), family: "system-ui, sans-serif", size: 12 },
      margin: { l: 48, r: 10, t: 8, b: 36 }, dragmode: coarse.matches ? false : "zoom",
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--faint"), activecolor: css("--accent") },
      hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--ink"), size: 12 } }, ...more,
    };
  }

  function draw(element) {
    const panel = page.panels[element.dataset.panel];
    if (!panel) return;
    const drawn = traces(panel), small = element.classList.contains("small");
    const named = drawn.filter((trace) => trace.showlegend !== false).length;
    const layout = plain({
      ...(small ? { margin: { l: 48, r: 10, t: 8, b: 22 } } : {}),
      xaxis: axis(small ? "" : AXES[state.axis], { nticks: 6, rangemode: "tozero" }), yaxis: valueAxis(panel, drawn),
      hovermode: several ? "closest" : "x unified", uirevision: state.axis + isLog(panel),
      showlegend: !several && named > 1 && !small, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal", font: { size: 11 } },
    });
    Plotly.react(element, drawn, layout, { ...OPTIONS, displayModeBar: small ? false : undefined });
  }

  function drawMap() {
    const element = find("map"), map = page.map;
    if (!element || !map) return;
    const points = map.methods[state.method] || Object.values(map.methods).at(-1);
    const drawn = map.names.map((name, number) => {
      const own = points.map((_, i) => i).filter((i) => map.colours[i] === number);
      return {
        type: "scatter", mode: "markers", name, x: own.map((i) => points[i][0]), y: own.map((i) => points[i][1]), customdata: own,
        marker: { size: 6, color: colour(number), opacity: 0.8, symbol: number < PALETTE.length ? "circle" : "diamond" }, hoverinfo: "none",
      };
    });
    const bare = { showgrid: false, zeroline: false, showticklabels: false, ticks: "" };
    const layout = plain({ xaxis: bare, yaxis: { ...bare, scaleanchor: "x" }, hovermode: "closest", margin: { l: 4, r: 4, t: 30, b: 4 }, legend: { itemsizing: "constant", orientation: window.innerWidth < 640 ? "h" : "v" }, uirevision: state.method });
    Plotly.react(element, drawn, layout, OPTIONS);
    if (!element.dataset.watched) {
      element.dataset.watched = "1";
      element.on("plotly_hover", (event) => glance(event.points[0].customdata, event.event));
      element.on("plotly_click", (event) => glance(event.points[0].customdata, event.event));
      element.on("plotly_unhover", () => { find("glance").style.display = "none"; });
    }
  }

  function glance(number, at) {
    const map = page.map, side = 112, box = find("glance"), picture = box.querySelector("div");
    const rows = Math.ceil(map.colours.length / map.columns);
    picture.style.backgroundImage = `url(${map.atlas})`;
    picture.style.backgroundSize = `${map.columns * side}px ${rows * side}px`;
    picture.style.backgroundPosition = `${-side * (number % map.columns)}px ${-side * Math.floor(number / map.columns)}px`;
    box.querySelector("span").textContent = map.labels ? map.labels[number] : map.names[map.colours[number]];
    box.style.display = "block";
    box.style.left = `${Math.max(4, Math.min(at.clientX + 14, window.innerWidth - 140))}px`;
    box.style.top = `${Math.max(4, Math.min(at.clientY + 14, window.innerHeight - 160))}px`;
  }

  function drawParallel() {
    const element = find("parallel"), parallel = page.parallel;
    if (!element || !parallel || parallel.dimensions.length < 2) return;
    const wide = Math.max(element.clientWidth, 60 + 110 * parallel.dimensions.length);
    const trace = {
      type: "parcoords", dimensions: parallel.dimensions, labelangle: -12, labelfont: { size: 11 }, tickfont: { size: 11, color: css("--ink") }, rangefont: { size: 10, color: css("--faint") },
      line: { color: parallel.values, colorscale: shade.matches ? OUTCOME_DARK : OUTCOME, showscale: true, colorbar: { title: { text: parallel.by, side: "right" }, thickness: 12 } },
    };
    Plotly.react(element, [trace], plain({ margin: { l: 70, r: 20, t: 70, b: 24 }, width: wide }), ALONE);
  }

  function drawAll() {
    every("[data-panel]", draw);
    every("[data-swatch]", (box) => { box.style.background = colour(state.averaged ? page.runs[box.dataset.swatch].group : +box.dataset.swatch); });
    drawMap();
    drawParallel();
  }

  // the list of runs

  function list() {
    const wanted = (find("search")?.value || "").toLowerCase().split(/\s+/).filter(Boolean), of = find("state")?.value || "";
    let listed = 0;
    every("#runs tbody tr", (row) => {
      const told = page.runs[row.dataset.run].told;
      row.hidden = !(wanted.every((word) => told.includes(word)) && (!of || row.dataset.state === of));
      listed += row.hidden ? 0 : 1;
      row.querySelector("[data-show]").checked = state.shown.has(+row.dataset.run);
    });
    if (find("listed")) find("listed").textContent = `${listed} of ${page.runs.length} runs listed, ${state.shown.size} drawn`;
  }

  const sorted = {};
  function sort(table, column, ascending) {
    const body = table.tBodies[0], rows = [...body.rows];
    const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
    const compare = (a, b) => {
      const [x, y] = [value(a), value(b)], [m, n] = [parseFloat(x), parseFloat(y)];
      if (Number.isNaN(m) !== Number.isNaN(n)) return Number.isNaN(m) ? 1 : -1; // what was not measured comes last
      const order = Number.isNaN(m) ? x.localeCompare(y) : m - n;
      return ascending ? order : -order;
    };
    body.append(...rows.sort(compare));
    [...table.tHead.rows[0].cells].forEach((cell, i) => (i === column ? cell.setAttribute("aria-sort", ascending ? "ascending" : "descending") : cell.removeAttribute("aria-sort")));
  }

  // a page that is served goes on while its runs do

  async function poll() {
    try {
      const shown = several ? `?show=${[...state.shown].map((run) => encodeURIComponent(page.runs[run].name)).join(",")}` : "";
      const response = await fetch(page.live.data + shown, { headers: poll.tag ? { "If-None-Match": poll.tag } : {}, cache: "no-store" });
      if (response.status === 200) {
        poll.tag = response.headers.get("ETag");
        renew(await response.json());
      } else if (response.status !== 304) throw new Error(response.status);
      connection("live", "faint");
    } catch (error) {
      connection("the server does not answer; the page stays as it was", "warn");
    }
    clearTimeout(poll.timer);
    poll.timer = setTimeout(poll, page.live.every);
  }

  function connection(said, kind) {
    const element = find("connection");
    if (element && element.textContent !== said) Object.assign(element, { textContent: said, className: kind });
  }

  function renew(next) {
    if (page.pictures !== undefined && String(page.pictures) !== String(next.data.pictures)) return location.reload();
    const names = several ? [...state.shown].map((run) => page.runs[run].name) : [];
    Object.assign(page, next.data);
    if (several) state.shown = new Set(names.map((name) => page.runs.findIndex((run) => run.name === name)).filter((run) => run >= 0));
    every("[data-live]", (element) => {
      const fragment = next.fragments[element.dataset.live];
      if (fragment === undefined || fragment === element.dataset.was) return;
      element.dataset.was = fragment;
      every(".js-plotly-plot", (plot) => Plotly.purge(plot), element);
      element.innerHTML = fragment;
    });
    every("table.sortable", (table) => { if (sorted[table.id]) sort(table, ...sorted[table.id]); });
    list();
    drawAll();
  }

  // what a person does

  document.addEventListener("input", (event) => {
    if (event.target.id === "smoothing") { state.smoothing = +event.target.value; every("[data-panel]", draw); }
    if (event.target.id === "search") list();
  });
  document.addEventListener("change", (event) => {
    const target = event.target;
    if (target.id === "axis") { state.axis = target.value; every("[data-panel]", draw); }
    if (target.id === "averaged") { state.averaged = target.checked; drawAll(); }
    if (target.id === "state") list();
    if (target.dataset.show !== undefined) { toggle(+target.dataset.show, target.checked); reshown(); }
  });
  document.addEventListener("click", (event) => {
    const target = event.target;
    if (target.dataset.log) {
      const panel = page.panels[target.dataset.log];
      state.log[panel.id] = !isLog(panel);
      target.setAttribute("aria-pressed", isLog(panel));
      every(`[data-panel="${CSS.escape(panel.id)}"]`, draw);
    }
    if (target.dataset.method) {
      state.method = target.dataset.method;
      every("[data-method]", (button) => button.setAttribute("aria-pressed", button === target));
      drawMap();
    }
    if (target.id === "none") { state.shown.clear(); reshown(); }
    if (target.id === "all") { every("#runs tbody tr:not([hidden])", (row) => toggle(+row.dataset.run, true)); reshown(); }
    const head = target.closest("table.sortable th");
    if (head) {
      const table = head.closest("table"), ascending = head.getAttribute("aria-sort") === "descending";
      if (table.id) sorted[table.id] = [head.cellIndex, ascending];
      sort(table, head.cellIndex, ascending);
    }
  });

  function toggle(run, shown) { shown ? state.shown.add(run) : state.shown.delete(run); }
  function reshown() {
    list();
    every("[data-panel]", draw);
    if (page.live) { poll.tag = null; poll(); }
  }

  try {
    if (find("plotly")) await unpack(find("plotly"));
  } catch (error) {
    document.querySelector("main").insertAdjacentHTML("afterbegin", '<p class="warn">This browser is too old to unpack the figures; the tables below are whole.</p>');
    return;
  }
  list();
  drawAll();
  shade.addEventListener("change", drawAll);
  if (page.live) poll.timer = setTimeout(poll, page.live.every);
  document.documentElement.dataset.ready = "1";
})();
