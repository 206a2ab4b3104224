"use strict";
// Tables that sort. Without scripts the pages keep their tables as they are.
(() => {
  const { make } = window.WORKBOOK;

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
    document.querySelectorAll("article table").forEach(sortable);
  });
})();
