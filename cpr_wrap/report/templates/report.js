"use strict";
(() => {
  // Light and dark: the system's choice until the reader makes one.
  const root = document.documentElement;
  const theme = document.getElementById("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const showTheme = () => {
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.setAttribute("aria-label", `Switch to the ${isDark() ? "light" : "dark"} theme`);
  };
  try {
    const kept = localStorage.getItem("cpr-wrap-theme");
    if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  } catch { /* a page without storage forgets the choice */ }
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("cpr-wrap-theme", root.dataset.theme);
    } catch { /* see above */ }
    showTheme();
  });
  system.addEventListener("change", showTheme);
  showTheme();

  // The read-out: slider and pointer choose an alpha, the table says what the curves are there.
  const slider = document.getElementById("alpha");
  const readings = JSON.parse(document.getElementById("readings-data").textContent);
  const rows = document.querySelectorAll("#readings tbody tr");
  const charts = document.querySelectorAll("#curve-chart .chart");
  const percent = (share) => `${(100 * share).toFixed(1)}%`;
  const read = () => {
    const place = Number(slider.value);
    document.getElementById("alpha-value").textContent = (place / 100).toFixed(2);
    rows.forEach((row, number) => {
      const [value, low, high] = readings[number][place];
      row.querySelector(".reading").textContent = percent(value);
      row.querySelector(".range").textContent = `${(100 * low).toFixed(1)}–${percent(high)}`;
    });
    charts.forEach((chart) => {
      const cursor = chart.querySelector(".cursor");
      cursor.setAttribute("x1", `${place}%`);
      cursor.setAttribute("x2", `${place}%`);
      cursor.classList.add("on");
    });
  };
  slider.addEventListener("input", read);
  charts.forEach((chart) => {
    chart.addEventListener("pointermove", (event) => {
      const box = chart.getBoundingClientRect();
      const alpha = (event.clientX - box.left) / box.width;
      slider.value = String(Math.round(100 * Math.min(1, Math.max(0, alpha))));
      read();
    });
  });
  read();

  // Filters hide runs everywhere above the details, a run's own box hides its curve alone.
  const selects = [...document.querySelectorAll("select[data-facet]")];
  const filter = () => {
    rows.forEach((row) => {
      const kept = selects.every((s) => !s.value || row.dataset[s.dataset.facet] === s.value);
      const box = row.querySelector("input");
      const drawn = kept && (box === null || box.checked);
      document.querySelectorAll(`[data-run="${row.dataset.run}"]`).forEach((each) => {
        each.classList.toggle("off", !(each.tagName === "g" ? drawn : kept));
      });
    });
  };
  selects.forEach((select) => select.addEventListener("change", filter));
  rows.forEach((row) => row.querySelector("input")?.addEventListener("change", filter));
  filter();

  // Sorting: numbers by their exact values, words by the alphabet, what is missing last.
  const key = (row, place) => {
    const cell = row.cells[place];
    return cell.dataset.value === undefined ? cell.textContent.trim() : Number(cell.dataset.value);
  };
  const missing = (value) => value === "–" || value === "";
  const compare = (one, other) =>
    typeof one === "number" && typeof other === "number"
      ? one - other
      : String(one).localeCompare(String(other), undefined, { numeric: true });
  document.querySelectorAll("table.sortable").forEach((table) => {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, place) => {
      head.querySelector("button").addEventListener("click", () => {
        const rising = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", rising ? "ascending" : "descending");
        const body = table.tBodies[0];
        [...body.rows]
          .sort((one, other) => {
            const [a, b] = [key(one, place), key(other, place)];
            if (missing(a) || missing(b)) return Number(missing(a)) - Number(missing(b));
            return rising ? compare(a, b) : compare(b, a);
          })
          .forEach((row) => body.append(row));
      });
    });
  });
})();
