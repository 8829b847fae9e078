"use strict";
(() => {
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const printing = window.matchMedia("print");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const PRINT_WIDTH = 660;

  // Colours: a figure names CSS variables; a probe element resolves them for the theme that is on.
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);

  const colorOf = (variable, known) => {
    if (!known.has(variable)) {
      probe.style.color = variable;
      known.set(variable, getComputedStyle(probe).color);
    }
    return known.get(variable);
  };
  const resolved = (node, known) => {
    if (typeof node === "string") return /^var\(--[\w-]+\)$/.test(node) ? colorOf(node, known) : node;
    if (Array.isArray(node)) return node.map((item) => resolved(item, known));
    if (node === null || typeof node !== "object") return node;
    return Object.fromEntries(Object.entries(node).map(([key, value]) => [key, resolved(value, known)]));
  };

  // Charts
  const charts = [...document.querySelectorAll("[data-chart]")];

  const draw = (chart, width) => {
    const plot = chart.querySelector(".plot");
    const index = Number(chart.querySelector("select")?.value ?? 0);
    const { data, layout } = resolved(figures[chart.dataset.chart][index], new Map());
    const views = chart.querySelectorAll(".view");
    for (const part of chart.querySelectorAll("[data-view]")) part.hidden = Number(part.dataset.view) !== index;
    const off = hiddenSeries(chart, index);
    for (const trace of data) if (off.has(trace.legendgroup)) trace.visible = false;
    plot.setAttribute("aria-label", views[index].dataset.alt);
    plot.style.minHeight = `${layout.height}px`;
    layout.font.family = getComputedStyle(document.body).fontFamily;
    layout.width = width ?? plot.clientWidth;
    for (const trace of data) fitCells(trace, layout.width);
    return Plotly.react(plot, data, layout, { displayModeBar: false, displaylogo: false, responsive: false });
  };
  // Values are written into the cells of a heat map only where there is room for them.
  const fitCells = (trace, width) => {
    if (trace.type !== "heatmap") return;
    const longest = Math.max(...trace.text.flat().map((text) => text.length));
    if ((width - 150) / trace.x.length < 10 + 6.5 * longest) delete trace.texttemplate;
  };
  // Series of a key: a press hides or shows one, in every view of the chart.
  const hiddenSeries = (chart, index) =>
    new Set(
      [...chart.querySelectorAll(`[data-view="${index}"] [aria-pressed="false"]`)].map((key) => key.dataset.series),
    );
  const toggleSeries = (chart, pressed) => {
    const shown = pressed.getAttribute("aria-pressed") === "true";
    for (const key of chart.querySelectorAll("[data-series]")) {
      if (key.dataset.series === pressed.dataset.series) key.setAttribute("aria-pressed", String(!shown));
    }
    draw(chart);
  };
  const drawAll = (width) => charts.forEach((chart) => draw(chart, width));

  for (const chart of charts) {
    chart.querySelector("select")?.addEventListener("change", () => draw(chart));
    for (const key of chart.querySelectorAll("[data-series]")) key.addEventListener("click", () => toggleSeries(chart, key));
  }

  let lastWidth = 0;
  new ResizeObserver(([entry]) => {
    const width = Math.round(entry.contentRect.width);
    if (width !== lastWidth && !printing.matches) {
      lastWidth = width;
      drawAll();
    }
  }).observe(document.getElementById("content"));

  // Theme: the system's, until the button says otherwise.
  const button = document.getElementById("theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const showTheme = () => {
    button.setAttribute("aria-pressed", String(isDark()));
    drawAll();
  };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    showTheme();
  });
  dark.addEventListener("change", showTheme);
  button.setAttribute("aria-pressed", String(isDark()));

  // Print: light colours and the width of a sheet, whatever the screen shows.
  let screenTheme;
  const startPrint = () => {
    screenTheme ??= root.dataset.theme ?? "";
    root.dataset.theme = "light";
    drawAll(PRINT_WIDTH);
  };
  const endPrint = () => {
    if (screenTheme === undefined) return;
    if (screenTheme) root.dataset.theme = screenTheme;
    else delete root.dataset.theme;
    screenTheme = undefined;
    drawAll();
  };
  window.addEventListener("beforeprint", startPrint);
  window.addEventListener("afterprint", endPrint);
  printing.addEventListener("change", (event) => (event.matches ? startPrint() : endPrint()));

  // Maps: one tab stop for the grid, arrows inside it; Enter or a click opens the enlarged map.
  const dialog = document.getElementById("enlarged");
  const tiles = [...document.querySelectorAll(".grid button")];
  const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  let current = tiles[0];

  const neighbour = (key) => {
    const [down, right] = ARROWS[key];
    const row = Number(current.dataset.row) + down;
    const column = Number(current.dataset.column) + right;
    return tiles.find((tile) => Number(tile.dataset.row) === row && Number(tile.dataset.column) === column);
  };
  const select = (tile) => {
    current.tabIndex = -1;
    current = tile;
    current.tabIndex = 0;
  };
  // Galleries: the images of the mask that is chosen, and what is known of each.
  const galleries = JSON.parse(document.getElementById("galleries")?.textContent ?? "{}");
  const choose = (figure, gallery) => {
    const choice = gallery.choices[Number(figure.querySelector("select")?.value ?? 0)];
    figure.querySelector(".choice").textContent = choice.text;
    figure.querySelectorAll(".grid button").forEach((tile, at) => {
      const values = choice.facts[at].map((value) => (value === null ? "" : `${value} %`));
      tile.querySelector("img").src = gallery.images[choice.tiles[at]];
      tile.dataset.facts = JSON.stringify(values);
    });
  };
  for (const figure of document.querySelectorAll("[data-gallery]")) {
    const gallery = galleries[figure.dataset.gallery];
    figure.querySelector("select")?.addEventListener("change", () => choose(figure, gallery));
    choose(figure, gallery);
  }
  // The enlarged mask: whole screen pixels a cell, and its tokens where they can be read.
  const label = (tile) => {
    const gallery = galleries[tile.closest("figure").dataset.gallery];
    if (!gallery) return;
    const wanted = gallery.tokens.length > 40 ? 560 : 440;
    const room = Math.min(wanted, window.innerWidth - 240, window.innerHeight - 300);
    const cell = Math.max(1, Math.floor(room / gallery.tokens.length));
    dialog.querySelector("figure").classList.add("labelled");
    dialog.querySelector("figure").style.setProperty("--cell", `${cell}px`);
    dialog.querySelector("figure").style.setProperty("--cells", gallery.tokens.length);
    for (const side of dialog.querySelectorAll(".tokens")) {
      side.hidden = cell < 7;
      side.replaceChildren(
        ...gallery.tokens.map((token) => {
          const word = document.createElement("span");
          word.textContent = token;
          return word;
        }),
      );
    }
  };
  const names = JSON.parse(document.querySelector(".maps")?.dataset.facts ?? "[]");
  const fact = (name, value) => {
    const [line, term, description] = ["div", "dt", "dd"].map((tag) => document.createElement(tag));
    term.textContent = name;
    description.textContent = value;
    line.append(term, description);
    return line;
  };
  const show = () => {
    const small = current.querySelector("img");
    const large = dialog.querySelector("img");
    large.src = small.src;
    label(current);
    large.alt = small.alt;
    dialog.querySelector("h2").textContent = current.getAttribute("aria-label").replace("Enlarge s", "S");
    dialog.querySelector("dl").replaceChildren(
      ...JSON.parse(current.dataset.facts).flatMap((value, at) => (value ? [fact(names[at], value)] : [])),
    );
  };
  const step = (event, then) => {
    if (!(event.key in ARROWS)) return;
    event.preventDefault();
    const next = neighbour(event.key);
    if (next) {
      select(next);
      then();
    }
  };
  for (const tile of tiles) {
    tile.addEventListener("click", () => {
      select(tile);
      show();
      dialog.showModal();
    });
    tile.addEventListener("keydown", (event) => step(event, () => current.focus()));
  }
  dialog.addEventListener("keydown", (event) => step(event, show));
  dialog.addEventListener("close", () => current.focus());
  dialog.querySelector(".close").addEventListener("click", () => dialog.close());
})();
