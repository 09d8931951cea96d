"use strict";
(() => {
  const filter = document.getElementById("filter");
  if (!filter) return;
  const input = filter.querySelector("input");
  const count = document.getElementById("count");
  const rows = Array.from(document.querySelectorAll("#tensors tbody tr"),
    (row) => ({ row, text: row.textContent.toLowerCase() }));
  filter.hidden = false;
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    for (const { row, text } of rows) {
      row.hidden = !words.every((word) => text.includes(word));
      if (!row.hidden) left += 1;
    }
    count.textContent = left === rows.length ? String(left) : left + " of " + rows.length;
  });
})();
