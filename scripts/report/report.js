// Behaviour of the report: draws the figures, sorts and filters the tables. No network, no storage.
"use strict";
(() => {
  const specs = JSON.parse(document.getElementById("figure-specs").textContent);
  const state = { views: {}, errors: [] };
  window.longnetReport = state; // figures by name, for the console and for tests

  const phone = (box) => box.clientWidth < 560;

  async function draw(box) {
    const spec = specs[box.dataset.figure];
    if (phone(box)) {
      spec.config.legend.columns = spec.config.legend.columns < 4 ? 1 : 2; // fewer where labels are long
      const named = spec.axes.filter((axis) => axis.labelLimit); // lanes and points by name
      named.forEach((axis) => { axis.labelLimit = 150; });
      if (named.length) Object.assign(spec.config.legend, { columns: 1, labelLimit: 150 });
      const size = spec.signals.find((signal) => signal.name === "mark_size");
      if (size) size.value = 36;
      const side = spec.signals.find((signal) => signal.name === "side_scale"); // of marks beside each other
      if (side) side.value = 0.45;
      spec.title.text = spec.title.text.split(" · ");
    }
    try {
      const result = await vegaEmbed(box, spec, {
        mode: "vega", renderer: "svg", actions: { export: true, source: false, compiled: false, editor: false },
        downloadFileName: box.dataset.figure, tooltip: { theme: "light" },
      });
      state.views[box.dataset.figure] = result.view;
    } catch (error) {
      state.errors.push(`${box.dataset.figure}: ${error}`);
      box.textContent = `This figure could not be drawn: ${error}`;
    }
  }

  function sortKey(row, column) {
    const cell = row.cells[column];
    const text = cell.dataset.value;
    if (cell.classList.contains("number")) return text === "" ? null : Number(text);
    return text;
  }

  // Empty cells stay last in either direction; equal rows keep their order.
  function sortBy(table, column, direction) {
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row, place) => ({ row, place, key: sortKey(row, column) }));
    const empty = (key) => key === null || key === "";
    rows.sort((a, b) => {
      if (empty(a.key) || empty(b.key)) return (empty(a.key) ? 1 : 0) - (empty(b.key) ? 1 : 0) || a.place - b.place;
      const order = typeof a.key === "number" && typeof b.key === "number" ? a.key - b.key : String(a.key).localeCompare(String(b.key), "en");
      return order * direction || a.place - b.place;
    });
    body.append(...rows.map((entry) => entry.row));
  }

  function makeSortable(table) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const ascending = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      sortBy(table, column, ascending ? 1 : -1);
    }));
  }

  function makeFilter(input) {
    const status = document.getElementById("filter-state");
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let visible = 0, all = 0;
      document.querySelectorAll("section.points").forEach((section) => {
        section.querySelectorAll("tbody tr").forEach((row) => {
          const cells = [...row.cells].map((cell) => cell.textContent.toLowerCase());
          cells.push(section.dataset.source);
          row.hidden = !words.every((word) => cells.some((text) => text.includes(word)));
          all += 1;
          visible += row.hidden ? 0 : 1;
        });
      });
      status.textContent = words.length ? `${visible} of ${all} points` : "";
    });
  }

  document.querySelectorAll("table.sortable").forEach(makeSortable);
  const filter = document.getElementById("filter");
  if (filter) makeFilter(filter);
  state.ready = Promise.all([...document.querySelectorAll(".chart")].map(draw)).then(() => Object.keys(state.views).length);
})();
