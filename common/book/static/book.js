"use strict";
// Charts that answer, tables that sort. Without scripts the pages keep their pictures and tables as they are.
(() => {
  const cards = window.WORKBOOK_RECORDS || [];
  const { make, draw } = window.WORKBOOK;
  const MEASURES = { speed: "speed", ms: "time, ms", share: "% of its floor" };

  const short = (value) => (value >= 100 ? Math.round(value).toLocaleString("en") : value.toPrecision(3));

  const label = (row) => row.name + (row.older ? " ¶" : "");
  const spoken = (row, first) => [
    `${row.name}: ${short(row.ms)} ms (p20 to p80: ${short(row.from)} to ${short(row.to)})`,
    row.gflops && `${row.gflops.toLocaleString("en")} GFLOP/s`,
    row.share && `${row.share} % of its floor`,
    first && `${short(first.ms / row.ms)} times as fast as ${first.name}`,
    row.beside && `${row.beside[1]} times as fast as ${row.beside[0]} in turn`,
  ].filter(Boolean).join(", ") + `. ${row.date}${row.older ? ". Measured on an older version of the file" : ""}.`;

  // --- charts ---

  function chart(place) {
    const own = cards.find((card) => card.own && card.presets[place.dataset.preset]);
    const state = { card: own ? own.slug : place.dataset.card, preset: place.dataset.preset, measure: "speed", hidden: new Set() };
    const ladderOf = (preset) => cards.map((card) => card.presets[preset]).find(Boolean).ladder;
    if (!cards.some((card) => card.presets[state.preset])) return;
    const ladder = ladderOf(state.preset);
    const picture = place.previousElementSibling;
    const figure = make("figure", { class: "answers" });
    const plot = make("div", { class: "plot" });
    const said = make("p", { class: "value", "aria-live": "polite" });
    const steps = make("div", { class: "choices" });

    function select(label, options, value, changed) {
      const list = make("select", { name: label }, ...options.map(([key, text]) => make("option", { value: key }, text)));
      list.value = value;
      list.addEventListener("change", () => changed(list.value));
      return make("label", {}, `${label} `, list);
    }
    const controls = make("div", { class: "controls" });
    // The selects are made anew: the one that was changed, by name, keeps the focus.
    function arrange(changed = null) {
      const known = cards.filter((card) => card.presets[state.preset]);
      if (!known.some((card) => card.slug === state.card)) state.card = known[0].slug;
      const card = known.find((one) => one.slug === state.card);
      const presets = Object.keys(card.presets).filter((name) => card.presets[name].ladder === ladder);
      controls.replaceChildren(
        select("card", known.map((one) => [one.slug, one.name]), state.card, (value) => { state.card = value; arrange("card"); }),
        select("problem", presets.map((name) => [name, name]), state.preset, (value) => { state.preset = value; arrange("problem"); }),
        select("show", Object.entries(MEASURES), state.measure, (value) => { state.measure = value; redraw(card.presets[state.preset]); }),
      );
      const again = changed && controls.querySelector(`select[name=${changed}]`);
      if (again) again.focus();
      steps.replaceChildren(...card.presets[state.preset].rows.map((row) => {
        const box = make("input", { type: "checkbox" });
        box.checked = !state.hidden.has(row.name);
        box.addEventListener("change", () => {
          state.hidden[box.checked ? "delete" : "add"](row.name);
          redraw(card.presets[state.preset]);
        });
        return make("label", {}, box, ` ${row.name}`);
      }));
      redraw(card.presets[state.preset]);
    }

    function redraw(data) {
      const first = data.rows.find((row) => row.step);
      const rows = data.rows.filter((row) => !state.hidden.has(row.name) && (state.measure !== "share" || row.share));
      const peer = libraryInTurn(data.rows), one = peer || first;
      const speed = (row) => (peer && row.step ? row.beside[1] : one.ms / row.ms);
      const value = (row) => (state.measure === "speed" ? speed(row) : state.measure === "ms" ? row.ms : row.share);
      const axis = state.measure !== "speed" ? MEASURES[state.measure] : peer ? `times as fast as ${peer.name}, in turn` : "times as fast as the first step";
      const floors = floorLines(data.floors, one);
      const longestBar = Math.max(1e-9, ...rows.map(value)), near = state.measure === "share" ? Infinity : 1.4 * longestBar;
      const lines = floors.filter(([, at]) => at <= near);
      const most = Math.max(longestBar, ...lines.map(([, at]) => at)) * 1.02;
      // One unit is one pixel, so that letters keep their size on a narrow screen.
      const wide = Math.max(280, plot.clientWidth || 736), pen = make("canvas").getContext("2d");
      pen.font = `13px ${getComputedStyle(document.body).getPropertyValue("--font-stack") || "sans-serif"}`;
      const longest = Math.max(0, ...rows.map((row) => pen.measureText(label(row)).width)) + 14;
      const above = longest > wide * 0.45, left = above ? 4 : longest, step = above ? 42 : 26, drop = above ? 17 : 0;
      const end = rows.length * step + 6;
      const scale = (number) => left + ((wide - left - 62) * number) / most;
      const svg = draw("svg", { viewBox: `0 0 ${wide} ${end + 20 + lines.length * 17}`, role: "group", "aria-label": `${state.preset}: ${axis}` });
      lines.forEach(([name, at], i) => {
        const y = end + 14 + i * 17, x = scale(at), toLeft = x + name.length * 7 > wide;
        svg.append(draw("line", { x1: x, x2: x, y1: 0, y2: y - 3, class: "floor" }));
        svg.append(draw("text", { x: toLeft ? x - 5 : x + 5, y, "text-anchor": toLeft ? "end" : "start", class: "axis floor-name" }, name));
      });
      rows.forEach((row, i) => {
        const y = 6 + i * step;
        const bar = draw("g", { tabindex: 0, role: "img", class: row.step ? "step" : "library" });
        bar.append(draw("rect", { x: left, y: y + drop, width: Math.max(1.5, scale(value(row)) - left), height: 19 }));
        bar.append(draw("text", above ? { x: left, y: y + 12 } : { x: left - 8, y: y + 14, "text-anchor": "end" }, label(row)));
        bar.append(draw("text", { x: scale(value(row)) + 6, y: y + drop + 14, class: "number" }, short(value(row))));
        const text = spoken(row, peer ? null : first);
        bar.setAttribute("aria-label", text);
        for (const event of ["pointerenter", "focus"]) bar.addEventListener(event, () => { said.textContent = text; });
        svg.append(bar);
      });
      svg.append(draw("text", { x: above ? 4 : left, y: end + 14 + lines.length * 17, class: "axis" }, axis));
      plot.replaceChildren(svg);
      const older = rows.some((row) => row.older) ? " ¶: an older version of the file was measured." : "";
      const without = state.measure === "share" ? data.rows.filter((row) => !state.hidden.has(row.name) && !row.share).map((row) => row.name) : [];
      const why = without.length ? ` Not shown: ${without.join(", ")}, ${without.length > 1 ? "which round" : "which rounds"} to TF32 for tensor cores: this floor does not hold there.` : "";
      said.textContent = `Point at a bar, or move to it with Tab, to read it.${older}${why}`;
    }

    // The library that all steps were timed in turn with, if there is one: its own time is of another minute.
    function libraryInTurn(rows) {
      const steps = rows.filter((row) => row.step), name = steps[0].beside && steps[0].beside[0];
      return steps.every((row) => row.beside && row.beside[0] === name) && rows.find((row) => row.name === name);
    }

    // The lines of the measure, each with its name. All shares are of one floor.
    function floorLines(floors, one) {
      if (!floors.length) return [];
      if (state.measure === "share") return [["floor", 100]];
      const at = new Map();
      for (const [name, ms] of floors) at.set(ms, at.has(ms) ? `${at.get(ms)}, ${name}` : name);
      return [...at].map(([ms, name]) => [name, state.measure === "ms" ? ms : one.ms / ms]);
    }

    let width = 0;
    new ResizeObserver(() => {
      if (plot.clientWidth === width || !plot.clientWidth) return;
      width = plot.clientWidth;
      redraw(cards.find((card) => card.slug === state.card).presets[state.preset]);
    }).observe(plot);
    figure.append(controls, plot, said, make("details", {}, make("summary", {}, "Choose steps"), steps));
    arrange();
    place.append(figure);
    if (picture && picture.querySelector("img")) picture.hidden = true;
  }

  // --- tables ---

  // A cell that begins with a number counts as that: "1,234", "1.53 (1.50–1.55)", "< 0.1 †", "12.5 %"; "gemm-4096" does not.
  function number(text) {
    const found = text.trim().replace(/(\d),(?=\d{3})/g, "$1").match(/^[<>≈~×+]?\s*([-−–]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)/i);
    return found ? Number(found[1].replace(/[−–]/, "-")) : null;
  }
  // Without figures at the end, whichever way is sorted: "not timed yet", empty cells.
  function compare(x, y, down) {
    const [a, b] = [number(x), number(y)], turn = down ? -1 : 1;
    if (a !== null && b !== null) return turn * (a - b);
    if (a !== null || b !== null) return a !== null ? -1 : 1;
    if (!x || !y) return x ? -1 : y ? 1 : 0;
    return turn * x.localeCompare(y, "en", { numeric: true });
  }

  function sortable(table) {
    const head = table.tHead && table.tHead.rows[0], body = table.tBodies[0];
    if (!head || body.rows.length < 4 || head.cells.length < 3) return;
    [...head.cells].forEach((cell, column) => {
      const button = make("button", { type: "button", class: "sort", title: "sort by this column" });
      button.append(...cell.childNodes);
      cell.append(button);
      cell.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const down = cell.getAttribute("aria-sort") === "ascending";
        for (const other of head.cells) other.setAttribute("aria-sort", "none");
        cell.setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = (row) => (row.cells[column] ? row.cells[column].textContent.trim() : "");
        body.append(...[...body.rows].sort((a, b) => compare(key(a), key(b), down)));
      });
    });
    if (head.cells.length < 6) return;
    const boxes = [...head.cells].map((cell, column) => {
      const box = make("input", { type: "checkbox", checked: "" });
      box.addEventListener("change", () => {
        for (const row of table.rows) if (row.cells[column]) row.cells[column].hidden = !box.checked;
      });
      return make("label", {}, box, ` ${cell.textContent}`);
    });
    const choice = make("details", { class: "columns" }, make("summary", {}, "Columns"), make("div", { class: "choices" }, ...boxes.slice(1)));
    (table.closest(".table-wrapper") || table).before(choice);
  }

  // --- what the theme leaves out for readers by keyboard and by ear ---

  function complete() {
    const name = (selector, label) => document.querySelectorAll(selector).forEach((node) => node.setAttribute("aria-label", label));
    name("aside.sidebar-drawer", "the book");
    name("aside.toc-drawer", "on this page");
    // What scrolls can be reached with Tab.
    for (const node of document.querySelectorAll(".highlight pre, .table-wrapper")) if (node.scrollWidth > node.clientWidth) node.tabIndex = 0;
  }

  document.addEventListener("DOMContentLoaded", () => {
    complete();
    document.querySelectorAll("#search-results").forEach((place) => place.before(make("h1", {}, "Search")));
    document.querySelectorAll(".ladder-chart").forEach(chart);
    document.querySelectorAll("article table").forEach(sortable);
  });
})();
