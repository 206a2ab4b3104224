"use strict";
// Draws the traces that stand in the page as JSON: source with costs, and the lanes of one request after another.
(() => {
  const WARP = 32, BANKS = 32, SECTOR = 32, WORD = 4, LOST = 0.75;
  const data = JSON.parse(document.getElementById("trace").textContent);
  const root = document.getElementById("explorer");
  const { make, draw } = window.WORKBOOK;
  const sum = (values) => [...values].reduce((total, value) => total + value, 0);
  const count = (n, one, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
  const UNIT = { global: "sector", shared: "wavefront", constant: "read" };
  const VERB = { read: "read", write: "write", copy: "copy", atomic: "add to" };
  const colour = (lane) => `hsl(${250 - lane * 7} 65% 50%)`;
  const short = (value) => (value >= 100 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(2))));
  const percent = (part, whole) => `${Math.round((100 * part) / whole)} %`;

  // A request's places by lane, in bytes; null: the lane asks for nothing. See common/report/traces.py.
  function request(packed) {
    const [warp, runs, together = 0, wavefronts = 0] = packed, places = [];
    for (const [lanes, first, step] of runs) for (let i = 0; i < lanes; i++) places.push(first === null ? null : first + i * step);
    return { warp, places, together, wavefronts };
  }
  const asking = (places) => places.flatMap((place, lane) => (place === null ? [] : [lane]));

  // --- one request ---

  const LEFT = 12, PITCH = 20.6, BOX = 18, LANES = 148, GOALS = 62;
  const middle = (lane) => LEFT + lane * PITCH + BOX / 2;

  function canvas(label, left, right) {
    const svg = draw("svg", { viewBox: "0 0 684 186", role: "img", "aria-label": label });
    for (let lane = 0; lane < WARP; lane++) svg.append(draw("rect", { x: LEFT + lane * PITCH, y: LANES, width: BOX, height: 14, fill: "none", stroke: "currentColor", "stroke-opacity": 0.4 }));
    svg.append(draw("text", { x: LEFT, y: 180, class: "soft" }, "lane 0"), draw("text", { x: 670, y: 180, class: "soft", "text-anchor": "end" }, "lane 31"));
    svg.append(draw("text", { x: LEFT, y: 28, class: "soft" }, left), draw("text", { x: 670, y: 28, class: "soft", "text-anchor": "end" }, right));
    return svg;
  }
  // Lines first, boxes over them. goals(lane): x of all places that the lane asks for.
  function join(svg, lanes, goals, served = () => true) {
    for (const lane of lanes.filter(served)) for (const x of goals(lane)) svg.append(draw("line", { x1: middle(lane), y1: LANES, x2: x, y2: GOALS, stroke: colour(lane), "stroke-width": 1.4 }));
    for (const lane of lanes) svg.append(draw("rect", { x: LEFT + lane * PITCH, y: LANES, width: BOX, height: 14, fill: colour(lane), "fill-opacity": served(lane) ? 1 : 0.2, "data-lane": lane }));
  }
  const asked = (access, lanes) => `${count(lanes.length, "lane")} ${VERB[access.op] || access.op} ${access.array}, ${count(access.bits / 8, "byte")} each`;

  function sectors(access, { places }) {
    const bytes = access.bits / 8, wanted = new Map(), lanes = asking(places);
    for (const lane of lanes) {
      for (let byte = places[lane]; byte < places[lane] + bytes; byte++) {
        const sector = Math.floor(byte / SECTOR);
        if (!wanted.has(sector)) wanted.set(sector, new Set());
        wanted.get(sector).add(byte - sector * SECTOR);
      }
    }
    const order = [...wanted.keys()].sort((a, b) => a - b), cell = Math.min(165, 660 / order.length), width = cell * 0.9;
    const start = (684 - cell * order.length) / 2, used = sum([...wanted.values()].map((words) => words.size)), all = order.length * SECTOR;
    const svg = canvas(`${count(order.length, "sector")} for one request`, `${count(order.length, "sector")} of 32 bytes`, used < all ? "hatched: not needed" : "");
    const grain = Math.min(WORD, bytes), slots = SECTOR / grain;
    order.forEach((sector, i) => {
      for (let slot = 0; slot < slots; slot++) {
        const on = wanted.get(sector).has(slot * grain);
        svg.append(draw("rect", { x: start + i * cell + (slot * width) / slots, y: 36, width: Math.max(width / slots - (slots * order.length > 300 ? 0 : 0.5), 0.3), height: 24, fill: on ? "var(--global)" : "url(#lost)", "data-sector": sector, "data-used": on }));
      }
    });
    svg.prepend(hatch());
    join(svg, lanes, (lane) => [start + order.indexOf(Math.floor(places[lane] / SECTOR)) * cell + (((places[lane] % SECTOR) + bytes / 2) / SECTOR) * width]);
    const lost = all - used, least = Math.ceil(used / SECTOR);  // a broadcast needs few bytes of one sector
    const text = `${asked(access, lanes)}: ${count(order.length, "sector")} of 32 bytes, ` + (!lost ? "every byte needed." : order.length > least ? `${percent(lost, all)} of their bytes are not needed.` : "no fewer would do.");
    return { svg, text, bad: order.length > 2 * least };
  }

  function hatch() {
    const pattern = draw("pattern", { id: "lost", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
    pattern.append(draw("rect", { width: 2, height: 5, fill: "var(--bad)" }));
    const defs = draw("defs");
    defs.append(pattern);
    return defs;
  }

  // The words by bank that lanes first to first + together - 1 ask for.
  function bankWords(access, { places, together }, first) {
    const width = Math.max(1, access.bits / 32), banks = new Map();
    for (let lane = first; lane < first + together; lane++) {
      if (places[lane] === null || places[lane] === undefined) continue;
      for (let v = 0; v < width; v++) {
        const word = Math.floor(places[lane] / WORD) + v, bank = ((word % BANKS) + BANKS) % BANKS;
        if (!banks.has(bank)) banks.set(bank, new Set());
        banks.get(bank).add(word);
      }
    }
    return { first, banks, most: Math.max(0, ...[...banks.values()].map((words) => words.size)) };
  }

  function banks(access, one) {
    const { places, together } = one, lanes = asking(places), groups = [];
    for (let first = 0; first < WARP; first += together) groups.push(bankWords(access, one, first));
    const worst = groups.reduce((a, b) => (b.most > a.most ? b : a));
    const served = (lane) => lane >= worst.first && lane < worst.first + together;
    const svg = canvas(`${count(one.wavefronts, "wavefront")} for one request`, "bank 0", "bank 31");
    for (let bank = 0; bank < BANKS; bank++) {
      const words = worst.banks.get(bank), many = words && words.size > 1;
      svg.append(draw("rect", { x: LEFT + bank * PITCH, y: 36, width: BOX, height: 24, fill: !words ? "none" : many ? "var(--badpaper)" : "var(--shared)", stroke: "currentColor", "stroke-opacity": 0.4, "data-bank": bank, "data-words": words ? words.size : 0 }));
      if (many) svg.append(draw("text", { x: middle(bank), y: 53, "text-anchor": "middle", style: "fill:#fff;font-weight:700" }, words.size));
    }
    const width = Math.max(1, access.bits / 32);
    join(svg, lanes, (lane) => Array.from({ length: width }, (_, v) => middle((((Math.floor(places[lane] / WORD) + v) % BANKS) + BANKS) % BANKS)), served);
    const words = new Set(lanes.flatMap((lane) => Array.from({ length: width }, (_, v) => Math.floor(places[lane] / WORD) + v))).size;
    let text = `${asked(access, lanes)}: ${count(one.wavefronts, "wavefront")}.`;
    if (worst.most > 1) text += ` A red bank must deliver as many words as stand in it, one after another.`;
    if (access.op === "read" && words < lanes.length * width && width === access.bits / 32) text += ` Only ${count(words, "word")} ${words === 1 ? "is" : "are"} asked for: one that several lanes want is sent to all at once.`;
    if (together < WARP && lanes.length > 1) text += ` In full colour: lanes ${worst.first} to ${worst.first + together - 1}, which are served together.`;
    return { svg, text, bad: worst.most > 1 };
  }

  function words(access, { places }) {
    const lanes = asking(places), order = [...new Set(lanes.map((lane) => places[lane]))].sort((a, b) => a - b);
    const cell = Math.min(60, 660 / order.length), start = (684 - cell * order.length) / 2;
    const svg = canvas(`${count(order.length, "word")} for one request`, count(order.length, "different word"), "");
    order.forEach((_, i) => svg.append(draw("rect", { x: start + i * cell, y: 36, width: cell * 0.9, height: 24, fill: "var(--shared)" })));
    join(svg, lanes, (lane) => [start + order.indexOf(places[lane]) * cell + cell * 0.45]);
    const text = `${asked(access, lanes)}: ` + (order.length === 1 ? "all the same, sent to all at once." : `${order.length} different words, one after another.`);
    return { svg, text, bad: order.length > 1 };
  }
  const PICTURE = { global: sectors, shared: banks, constant: words };

  // --- a line ---

  function show(panel, step, kernel, line) {
    const chosen = kernel.accesses.filter((access) => access.line === line), fma = kernel.fma_lines[line];
    const code = make("pre", { class: "scroll", tabindex: 0 }, make("code", {}, (step.sources[kernel.file][line - 1] || "").trim()));
    panel.replaceChildren(make("h2", {}, `Line ${line}`), code);
    for (const fault of kernel.faults.filter((one) => one.line === line)) panel.append(make("p", { class: "bad-text" }, fault.text));
    if (fma) panel.append(make("p", {}, `${count(fma, "multiply-add")}, ${percent(fma, kernel.fma)} of the block's.`));
    if (!chosen.length) return;
    const picks = make("div", { class: "picks", role: "group", "aria-label": "accesses of this line" });
    const sums = make("p", { class: "sums" }), svgs = make("div", { class: "picture" }), text = make("p", { class: "told", "aria-live": "polite" });
    const range = make("input", { type: "range", min: 1, value: 1, "aria-label": `request of line ${line}` });
    const at = make("output"), slider = make("div", { class: "slider" }, make("span", {}, "request"), range, at);
    let access = null;
    function redraw() {
      const seen = access.seen.length;
      slider.hidden = seen < 2;
      if (!seen) {
        svgs.replaceChildren();
        text.className = "told";
        text.textContent = "No lanes ask here: an engine moves whole tiles.";
        return;
      }
      const one = request(access.seen[range.value - 1]), found = PICTURE[access.space](access, one);
      at.textContent = `${range.value} of the first ${seen}: warp ${one.warp}`;
      range.setAttribute("aria-valuetext", at.textContent);
      svgs.replaceChildren(found.svg);
      text.className = found.bad ? "told bad-text" : "told";
      text.textContent = found.text;
    }
    function pick(one, button) {
      access = one;
      for (const other of picks.children) other.setAttribute("aria-pressed", other === button);
      range.max = Math.max(1, one.seen.length);
      range.value = 1;
      const most = one.moved === one.ideal ? "no fewer would do" : `${percent(one.ideal, one.moved)} of them needed, at best ${one.ideal.toLocaleString("en")}`;
      sums.textContent = `In the whole block ${count(one.requests, "request")}, ${count(one.moved, UNIT[one.space])}: ${most}.`;
      redraw();
    }
    range.addEventListener("input", redraw);
    for (const one of chosen) {
      const button = make("button", { type: "button", class: "pick", "aria-pressed": false }, `${one.op} ${one.array} (${one.space}, ${one.bits > 128 ? `${(one.bits / 8).toLocaleString("en")} bytes` : `${one.bits} bit`})`);
      button.addEventListener("click", () => pick(one, button));
      picks.append(button);
    }
    panel.append(picks, sums, svgs, slider, text);
    pick(chosen[0], picks.children[0]);
  }

  // --- a step ---

  // Blocks of two steps do not do the same work: side by side, costs are those of a thousand multiply-adds.
  const pair = data.length > 1 && data.every((step) => step.trace.kernels[step.trace.main].fma);
  // A kernel beside the main one is weighed by how many of its blocks there are for each of the main one's.
  const runs = (kernel) => kernel.grid.reduce((all, extent) => all * extent, 1) / kernel.blocks;
  const chief = (kernel) => data.map((step) => step.trace).find((trace) => trace.kernels.includes(kernel));
  function scaled(kernel, moved) {
    if (!pair) return moved;
    const trace = chief(kernel), main = trace.kernels[trace.main];
    return (1000 * moved * runs(kernel)) / (main.fma * runs(main));
  }
  const used = (space) => data.some((step) => step.trace.kernels.some((kernel) => kernel.accesses.some((access) => access.space === space)));
  const COLUMNS = [["sectors", "global"], ["wavefronts", "shared"], ...(used("constant") ? [["constant", "constant"]] : [])];
  const at = (kernel, line, space) => kernel.accesses.filter((access) => access.line === line && access.space === space);
  const moved = (accesses) => sum(accesses.map((access) => access.moved));
  const linesOf = (kernel) => [...new Set([...kernel.accesses.map((access) => access.line), ...Object.keys(kernel.fma_lines).map(Number), ...kernel.faults.map((fault) => fault.line)])].filter((line) => line !== null).sort((a, b) => a - b);
  const highest = (kernel, space) => Math.max(1e-9, ...linesOf(kernel).map((line) => scaled(kernel, moved(at(kernel, line, space)))));

  function heat(kernel, line, space, most) {
    const here = at(kernel, line, space);
    if (!here.length) return make("span", { class: "heat" });
    const value = scaled(kernel, moved(here)), ideal = sum(here.map((access) => access.ideal)), lost = ideal < LOST * moved(here);
    const cell = make("span", { class: `heat ${space}${lost ? " lost" : ""}`, title: lost ? `${percent(ideal, moved(here))} of it needed` : null });
    const bar = make("i");
    bar.style.width = `${Math.min(100, Math.max(1.5, (100 * value) / most))}%`;
    cell.append(bar, (pair ? short(value) : value.toLocaleString("en")) + (lost ? " !" : ""));
    return cell;
  }

  function source(step, kernel, panel) {
    const lines = linesOf(kernel), faulty = new Set(kernel.faults.map((fault) => fault.line));
    const most = COLUMNS.map(([, space]) => Math.max(...(pair ? data.flatMap((one) => one.trace.kernels).map((one) => highest(one, space)) : [highest(kernel, space)])));
    const inner = make("div", { class: "rows" });
    const box = make("div", { class: COLUMNS.length > 2 ? "source three" : "source", role: "toolbar", "aria-orientation": "vertical", "aria-label": `lines of ${step.name}` });
    const says = COLUMNS.map(([name]) => make("span", { class: "heat" }, name));
    inner.append(make("div", { class: "row heads" }, make("span", { class: "number" }), ...says, make("span", { class: "text" }, pair ? "for 1,000 multiply-adds" : "of this block")));
    box.append(inner);
    const rows = [];
    function choose(row, focus) {
      for (const other of rows) {
        other.setAttribute("aria-pressed", other === row);
        other.tabIndex = other === row ? 0 : -1;
      }
      show(panel, step, kernel, Number(row.dataset.line));
      if (focus) row.focus();
    }
    step.sources[kernel.file].forEach((text, i) => {
      const line = i + 1, costs = COLUMNS.map(([, space], c) => heat(kernel, line, space, most[c]));
      const cells = [make("span", { class: "number" }, String(line)), ...costs, make("span", { class: "text" }, text || " ")];
      if (!lines.includes(line)) return inner.append(make("div", { class: "row" }, ...cells));
      const row = make("button", { type: "button", class: faulty.has(line) ? "row fault" : "row", "aria-pressed": false, tabindex: -1, "data-line": line }, ...cells);
      row.addEventListener("click", () => choose(row, false));
      rows.push(row);
      inner.append(row);
    });
    const STEPS = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity };
    box.addEventListener("keydown", (event) => {
      const from = rows.indexOf(document.activeElement);
      if (from < 0 || !(event.key in STEPS)) return;
      event.preventDefault();
      choose(rows[Math.max(0, Math.min(rows.length - 1, from + STEPS[event.key]))], true);
    });
    // first what is wrong, then where most goes
    const weight = (row) => Math.max(...COLUMNS.map(([, space]) => moved(at(kernel, Number(row.dataset.line), space))));
    const start = rows.find((row) => row.classList.contains("fault")) || rows.reduce((a, b) => (a === null || weight(b) > weight(a) ? b : a), null);
    return { box, start, choose };
  }

  function pipeline(kernel) {
    const spans = kernel.pipeline, stages = [...new Set(spans.map((span) => span[0]))];
    const end = Math.max(...spans.map((span) => span[3])), left = 130, width = Math.max(540, end * 9);
    // "filled[0]" is the barrier that says so of stage 0
    const named = (stage) => stage.replace(/^(\w+)\[(\d+)\]$/, "stage $2 $1");
    const svg = draw("svg", { viewBox: `0 0 ${left + width + 10} ${26 + stages.length * 24}`, style: `width:${left + width + 10}px`, role: "img", "aria-label": `${count(stages.length, "stage")} over time` });
    stages.forEach((stage, i) => {
      svg.append(draw("text", { x: 0, y: 18 + i * 24 }, named(stage)));
      for (const [, state, from, to, line] of spans.filter((span) => span[0] === stage)) {
        const rect = draw("rect", { x: left + (width * from) / end, y: 4 + i * 24, width: Math.max(0, (width * (to - from)) / end - 0.8), height: 18, class: state, stroke: "currentColor", "stroke-opacity": 0.25 });
        rect.append(draw("title", {}, `${named(stage)}: ${state}, line ${line}`));
        svg.append(rect);
      }
    });
    svg.append(draw("text", { x: left, y: 20 + stages.length * 24, class: "soft" }, "one event after the other: no clock"));
    const key = ["filling", "full", "multiplied"].flatMap((state) => [make("span", { class: `key ${state}` }), ` ${state}  `]);
    return make("figure", { class: "pipeline" }, make("figcaption", {}, "The pipeline's stages: ", ...key, "; empty: free"), make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "pipeline over time" }, svg));
  }

  function stepView(step) {
    const view = make("section", { class: "step", "aria-label": step.name }), trace = step.trace;
    function fill(kernel) {
      const panel = make("div", { class: "panel" }), found = source(step, kernel, panel), header = make("header");
      if (data.length > 1) header.append(make("h2", {}, step.name));
      header.append(make("p", { class: "where" }, `${kernel.file} at ${trace.shape}; kernel ${kernel.name}, ${count(kernel.blocks, "block")} of ${kernel.grid.join(" × ")}, ${kernel.block.join(" × ")} threads`));
      if (trace.kernels.length > 1) {
        const choice = make("select", { onchange: (event) => { fill(trace.kernels[event.target.value]); view.querySelector("select").focus(); } });
        trace.kernels.forEach((one, i) => choice.append(make("option", { value: i }, one.name)));
        choice.value = trace.kernels.indexOf(kernel);
        header.append(make("label", { class: "slider" }, "kernel", choice));
      }
      view.replaceChildren(header, found.box, panel);
      if (kernel.pipeline.length) view.append(pipeline(kernel));
      for (const text of kernel.says) view.append(make("p", { class: "notes" }, text));
      if (!found.start) return panel.append(make("p", {}, "No access to memory."));
      found.choose(found.start, false);
      requestAnimationFrame(() => { found.box.scrollTop = Math.max(0, found.start.offsetTop - found.box.clientHeight / 2); });
    }
    fill(trace.kernels[trace.main]);
    return view;
  }

  root.append(make("p", {}, `Choose a line with a cost, by a click or with the arrow keys. Its bars: sectors of global memory${COLUMNS.length > 2 ? ", " : " and "}wavefronts of shared memory${COLUMNS.length > 2 ? " and reads of constant memory" : ""}${pair ? ", both steps on one scale" : ""}; red and "!": more than a quarter of it not needed.`));
  root.append(make("div", { class: data.length > 1 ? "steps two" : "steps one" }, ...data.map(stepView)));
})();
