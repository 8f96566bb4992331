// Behaviour of the report: draws figures when they come near the window, fills, sorts and filters the tables.
// No network, no storage. Data stand in the page as gzip in base64.
"use strict";
(() => {
  const style = JSON.parse(document.getElementById("style").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const charts = [...document.querySelectorAll(".chart")];
  const FRAME = 14; // pixels of a figure's box below its picture
  const LEAST_SCREEN = 700; // no picture is made lower for a lower window
  const LOWEST_PLOT = 110;
  const state = { views: {}, errors: [] };
  window.longnetReport = state; // figures by name, for the console and for tests

  async function unpack(id) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }

  function wrapped(text, characters) {
    return text.split(" ").reduce((lines, word) => {
      if (`${lines.at(-1)} ${word}`.length > characters) lines.push(word);
      else lines[lines.length - 1] = `${lines.at(-1)} ${word}`.trim();
      return lines;
    }, [""]);
  }

  // The spec at the size of its box, in the colours of the page; `lower` of its pixels of height are not to be had.
  function fitted(text, width, lower) {
    const colours = style.themes[dark.matches ? "dark" : "light"];
    const spec = JSON.parse(text.replace(/"(@\w+|#[0-9A-Fa-f]{6})"/g, (found, name) => JSON.stringify(colours[name] ?? name)));
    const config = JSON.parse(JSON.stringify(style.config).replace(/@\w+/g, (name) => colours[name]));
    const rows = spec.datasets.rows;
    const pixels = (texts) => 6.8 * texts.reduce((most, text) => Math.max(most, text.length), 0);
    const named = ["label", "lane"].find((field) => field === spec.encoding?.y.field);
    const left = Math.max(70, named ? pixels(rows.flatMap((row) => row[named].split("\n"))) : 0); // a legend begins behind these
    const legend = 40 + pixels(rows.map((row) => row.winner ?? row.series ?? row.phase ?? row.part ?? row.algorithm ?? ""));
    const phone = width < 560;
    const columns = phone ? 1 : Math.max(1, Math.min(spec.config.legend.columns, Math.floor((width - left) / legend)));
    spec.config = { ...config, legend: { ...config.legend, columns } };
    spec.title = { ...spec.title, text: wrapped(spec.title.subtitle, width / 6.6), subtitle: null, fontSize: 12, fontWeight: "normal", color: colours["@soft"] };
    if (spec.facet) {
      spec.columns = phone ? 1 : Math.min(spec.columns, Math.floor((width - 100) / 200)); // room for the axis title of each
      spec.spec.width = Math.floor((width - 100) / spec.columns) - 20;
    } else if (left + legend > width) {
      spec.width = width - 90; // the legend is wider: the picture is scaled, and nothing is cut
    } else {
      Object.assign(spec, { width: "container", autosize: { type: "fit-x", contains: "padding", resize: true } });
    }
    const longest = 7.2 * (spec.params.find((p) => p.name === "cell_text")?.value ?? 0);
    const [across, up] = ["tokens", "ranks"].map((name) => new Set(rows.map((row) => row[name])).size);
    if (longest > (width - 90) / across) spec.height = Math.max(spec.height, up * (longest + 2)); // upright in narrow cells
    if (lower) {
      const plot = spec.spec ?? spec;
      const panels = spec.facet ? Math.ceil(spec.facet.sort.length / spec.columns) : 1;
      plot.height = Math.max(LOWEST_PLOT, Math.floor(plot.height - lower / panels));
      if (plot.encoding?.y.title) plot.encoding.y.title = wrapped(plot.encoding.y.title, plot.height / 6.6);
    }
    if (phone) spec.params.forEach((p) => Object.assign(p, { mark_size: { value: 36 }, side_scale: { value: 0.45 } }[p.name]));
    return spec;
  }

  // How far the answer's figure ends below the window, where it has the page's width to itself and its claims.
  function excess(box) {
    const bottom = box.querySelector("svg").getBoundingClientRect().bottom + scrollY;
    return box.closest("#answer") && innerWidth > 1120 ? Math.max(0, Math.ceil(bottom + FRAME - Math.max(innerHeight, LEAST_SCREEN))) : 0;
  }

  async function draw(box, lower = 0) {
    const name = box.dataset.figure;
    try {
      const result = await vegaEmbed(box, fitted(await unpack(`data-${name}`), box.clientWidth, lower), {
        mode: "vega-lite", renderer: "svg", actions: { export: true, source: false, compiled: false, editor: false },
        downloadFileName: name, tooltip: { theme: dark.matches ? "dark" : "light" },
      });
      if (!lower && excess(box)) {
        result.finalize();
        return draw(box, excess(box));
      }
      box.querySelector("svg").setAttribute("aria-hidden", "true"); // the box has the text
      box.dataset.theme = dark.matches ? "dark" : "light";
      state.views[name] = result.view;
    } catch (error) {
      state.errors.push(`${name}: ${error}`);
      box.textContent = `This figure could not be drawn: ${error}`;
    }
  }

  const begun = new Map();
  const once = (box) => begun.get(box) ?? begun.set(box, draw(box)).get(box);
  const near = new IntersectionObserver((entries) => entries.filter((e) => e.isIntersecting).forEach((e) => once(e.target)), { rootMargin: "400px" });
  dark.addEventListener("change", () => [...begun.keys()].forEach((box) => draw(box)));
  state.drawAll = () => Promise.all(charts.map(once));
  // Those before "more", one by one, so that printing finds them.
  async function drawLater() {
    for (const box of charts.filter((c) => !c.closest("details"))) {
      await new Promise((resume) => (window.requestIdleCallback ?? setTimeout)(resume));
      await once(box);
    }
  }

  const PAGE = 100; // rows of a table before "all rows"

  function makeTable(section) {
    const table = section.querySelector("table");
    const groups = section.querySelector(".groups");
    const printed = Number(section.dataset.printed);
    let columns, places, shown, sorting = { column: -1, direction: 1 }, all = false;

    function visible(column) {
      const box = groups?.querySelector(`[value="${column.group}"]`);
      return !box || box.checked;
    }

    function head() {
      const row = table.tHead.insertRow();
      columns.forEach((column, place) => {
        const cell = document.createElement("th");
        cell.scope = "col";
        cell.className = column.number ? "number" : "";
        cell.setAttribute("aria-sort", "none");
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = column.title;
        button.addEventListener("click", () => sortBy(place));
        cell.append(button);
        row.append(cell);
      });
    }

    function body() {
      const rows = shown.slice(0, all ? undefined : PAGE).map((place, order) => {
        const row = document.createElement("tr");
        row.className = order < printed ? "" : "unprinted";
        columns.forEach((column, c) => {
          const cell = document.createElement(c === 0 ? "th" : "td");
          if (c === 0) cell.scope = "row";
          const exact = column.exact[place];
          cell.textContent = column.shown[place];
          cell.dataset.value = exact ?? "";
          if (column.number) Object.assign(cell, { className: "number", title: exact ?? "" });
          if (column.css) cell.className = `${column.css} ${exact}`;
          row.append(cell);
        });
        return row;
      });
      table.tBodies[0].replaceChildren(...rows);
      [...table.rows].forEach((row) => columns.forEach((column, c) => { row.cells[c].hidden = !visible(column); }));
      const rest = section.querySelector(".rest");
      rest.hidden = all || shown.length <= PAGE;
      rest.textContent = `Show all ${shown.length} rows`;
      const paper = section.querySelector(".on-paper");
      paper.hidden = shown.length <= printed;
      paper.textContent = `${shown.length - printed} of ${shown.length} rows are not printed: they are on the page itself, in the CSV that it saves, and in the files of the run.`;
    }

    // Empty cells stay last in either direction; equal rows keep their order.
    function sortBy(column) {
      const heads = [...table.tHead.rows[0].cells];
      const direction = heads[column].getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach((h) => h.setAttribute("aria-sort", "none"));
      heads[column].setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
      sorting = { column, direction };
      order();
      body();
    }

    function order() {
      if (sorting.column < 0) return;
      const empty = (key) => key === null || key === "";
      shown.sort((i, j) => {
        const [a, b] = [i, j].map((place) => columns[sorting.column].exact[place]);
        if (empty(a) || empty(b)) return (empty(a) ? 1 : 0) - (empty(b) ? 1 : 0) || i - j;
        const way = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en");
        return way * sorting.direction || i - j;
      });
    }

    async function fill() {
      columns = JSON.parse(await unpack(`points-${section.dataset.source}`));
      places = columns[0].exact.map((_, place) => place);
      shown = [...places];
      head();
      body();
    }

    function filter(words) {
      shown = places.filter((place) => {
        const cells = [...columns.map((column) => column.shown[place]), section.dataset.source].map((text) => text.toLowerCase());
        return words.every((word) => cells.some((text) => text.includes(word)));
      });
      order();
      body();
      return [shown.length, places.length];
    }

    // Text that a spreadsheet would run as a formula gets a quote in front.
    function csvCell(value) {
      const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value ?? "");
      return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    }

    function csv() {
      const rows = places.map((place) => [section.dataset.source, ...columns.map((column) => column.exact[place])]);
      return [["source", ...columns.map((column) => column.key)], ...rows].map((row) => `${row.map(csvCell).join(",")}\r\n`).join("");
    }

    groups?.addEventListener("change", body);
    section.querySelector(".rest").addEventListener("click", () => { all = true; body(); });
    section.querySelector(".csv").addEventListener("click", () => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
      link.download = `points-${section.dataset.source}.csv`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
    return { fill, filter, csv };
  }

  state.tables = [...document.querySelectorAll("section.points")].map(makeTable);
  document.getElementById("filter")?.addEventListener("input", (event) => {
    const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    const counts = state.tables.map((table) => table.filter(words));
    const sum = (place) => counts.reduce((total, count) => total + count[place], 0);
    document.getElementById("filter-state").textContent = words.length ? `${sum(0)} of ${sum(1)} points` : "";
  });

  async function begin() {
    if (charts.length) await once(charts[0]); // the answer
    await Promise.all(state.tables.map((table) => table.fill()));
    charts.forEach((box) => near.observe(box));
    drawLater();
    return charts.length;
  }
  state.ready = begin();
})();
