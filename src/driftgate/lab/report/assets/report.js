"use strict";
(() => {
  const root = document.documentElement;

  // Theme: what the system says, until the reader chooses; a file opened from disk may not be allowed to remember.
  const remember = (value) => { try { localStorage.setItem("driftgate-theme", value); } catch { /* not allowed */ } };
  const remembered = () => { try { return localStorage.getItem("driftgate-theme"); } catch { return null; } };
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const toggle = document.getElementById("theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();
  const label = () => { toggle.textContent = isDark() ? "Light theme" : "Dark theme"; };
  toggle.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remember(root.dataset.theme);
    label();
  });
  system.addEventListener("change", label);
  label();

  // Tables: a click sorts, a second one turns the order round. Empty cells stay last in both orders.
  const valueOf = (row, place, kind) => {
    const cell = row.cells[place];
    const text = cell.dataset.value ?? cell.textContent.trim();
    if (kind === "text") return text.toLowerCase();
    return text === "" ? NaN : Number(text);
  };
  const compare = (first, second, sign) => {
    if (typeof first === "string") return sign * first.localeCompare(second, undefined, { numeric: true });
    if (Number.isNaN(first) || Number.isNaN(second)) return Number.isNaN(first) - Number.isNaN(second);
    return sign * (first - second);
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows].at(-1).cells;
    for (const head of heads) {
      head.querySelector("button").addEventListener("click", () => {
        const kind = head.dataset.kind;
        const first = kind === "text" ? "ascending" : "descending";
        const other = first === "ascending" ? "descending" : "ascending";
        const order = head.getAttribute("aria-sort") === first ? other : first;
        for (const each of heads) each.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", order);
        const sign = order === "ascending" ? 1 : -1;
        const body = table.tBodies[0];
        const rows = [...body.rows].map((row) => [valueOf(row, head.cellIndex, kind), row]);
        rows.sort((a, b) => compare(a[0], b[0], sign));
        body.append(...rows.map((pair) => pair[1]));
        table.dataset.sorted = "";
      });
    }
  }

  // Every table as CSV, with the numbers behind what is printed.
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  for (const button of document.querySelectorAll("[data-file]")) {
    button.addEventListener("click", () => {
      const table = button.closest("table");
      const heads = [...[...table.tHead.rows].at(-1).cells].map((cell) => cell.textContent.trim());
      const rows = [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.dataset.value || cell.textContent.trim()));
      const text = [heads, ...rows].map((row) => row.map(quoted).join(",")).join("\n") + "\n";
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
      link.download = button.dataset.file;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
  }

  // Charts: chosen methods stay, the others step back.
  const chosen = new Set();
  const buttons = [...document.querySelectorAll("[data-choose]")];
  const draw = () => {
    for (const button of buttons) {
      if (button.dataset.choose) button.setAttribute("aria-pressed", String(chosen.has(button.dataset.choose)));
    }
    for (const mark of document.querySelectorAll(".chart [data-method]")) {
      mark.classList.toggle("dim", chosen.size > 0 && !chosen.has(mark.dataset.method));
    }
  };
  for (const button of buttons) {
    button.addEventListener("click", () => {
      const method = button.dataset.choose;
      if (!method) chosen.clear();
      else if (!chosen.delete(method)) chosen.add(method);
      draw();
    });
  }

  // A link into a closed part opens it; print shows everything.
  const reveal = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
    if (target) target.scrollIntoView();
  };
  window.addEventListener("hashchange", reveal);
  reveal();
  let closed = [];
  window.addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const part of closed) part.open = true;
  });
  window.addEventListener("afterprint", () => { for (const part of closed) part.open = false; });
})();
