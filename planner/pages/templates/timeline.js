/* Draws one step of a pipeline from the data in the page: who runs what, memory against the limit, facts on pointing. */
export function drawTimeline() {
  const data = JSON.parse(document.getElementById("step").textContent);
  const gantt = document.getElementById("gantt"), memory = document.getElementById("memory");
  const tip = document.getElementById("tip");
  const LEFT = 60, LANE = 26, GAP = 5, AXIS = 20, TALL = 54, NS = "http://www.w3.org/2000/svg";
  const [STAGE, PASS, BATCH, START, END, HOP, TO] = [0, 1, 2, 3, 4, 5, 6];
  /* In the file an action is [kind, micro-batch, start]; what its kind has in common is written once. */
  data.ranks = data.ranks.map(rows => rows.map(([kind, batch, start]) => {
    const [stage, pass, length, hop, to] = data.kinds[kind];
    return [stage, pass, batch, start, start + length, hop, to];
  }));
  let from = 0, until = data.step || 1, chosen = -1;

  /* Asked for once per drawing: every question about the layout after a change makes the browser lay out again. */
  let wide = 0;
  const measure = () => { wide = Math.max(200, gantt.clientWidth - LEFT - 4); };
  const x = t => LEFT + (t - from) / (until - from) * wide;
  const seconds = s => s >= 1 ? s.toFixed(3) + " s" : s >= 1e-3 ? (s * 1e3).toFixed(3) + " ms" : (s * 1e6).toFixed(1) + " \u00b5s";
  const gib = b => (b / 2 ** 30).toFixed(2) + " GiB";
  /* The last row whose value in the column is at most t. */
  const lastAt = (rows, column, t) => {
    let low = 0, high = rows.length;
    while (low < high) { const mid = (low + high) >> 1; if (rows[mid][column] <= t) low = mid + 1; else high = mid; }
    return low - 1;
  };
  const add = (parent, kind, facts, text) => {
    const node = document.createElementNS(NS, kind);
    for (const name in facts) node.setAttribute(name, facts[name]);
    if (text !== undefined) node.textContent = text;
    return parent.appendChild(node);
  };

  /* As tall as it has to be; on paper, where there is less room, all of it is made smaller. */
  const size = (svg, height) => {
    svg.setAttribute("viewBox", `0 0 ${wide + LEFT + 4} ${height}`);
  };
  /* A moment on an axis whose ticks are step apart. */
  const tick = (t, step) => {
    const [factor, unit] = until >= 1 ? [1, " s"] : until >= 1e-3 ? [1e3, " ms"] : [1e6, " \u00b5s"];
    return (t * factor).toFixed(Math.max(0, -Math.floor(Math.log10(step * factor) + 1e-9))) + unit;
  };

  function axis(svg, height) {
    const raw = (until - from) / 8, unit = 10 ** Math.floor(Math.log10(raw));
    const step = unit * [1, 2, 5, 10].find(k => k * unit >= raw);
    for (let t = Math.ceil(from / step) * step; t <= until; t += step) {
      add(svg, "line", { class: "grid", x1: x(t), x2: x(t), y1: 0, y2: height });
      add(svg, "text", { x: x(t), y: height + 14, "text-anchor": "middle" }, tick(t, step));
    }
  }

  function bar(svg, y, start, end, name, label, facts = {}) {
    const left = Math.max(x(start), LEFT), length = Math.min(x(end), LEFT + wide) - left, height = facts.height || LANE;
    if (length <= 0 || height < .1) return;
    add(svg, "rect", Object.assign({ class: name, x: left, y, width: Math.max(length, .5), height }, facts));
    if (label && length > 6.5 * label.length + 4) add(svg, "text", { class: "name", x: left + 3, y: y + height / 2 + 4 }, label);
  }

  /* Actions too narrow to see, from the i-th on: their shares of a cell, stacked. Returns the next action. */
  function drawCell(y, rows, i, cell) {
    const start = rows[i][START], spent = new Map();
    let end = start;
    for (; i < rows.length && rows[i][END] <= start + cell; i++) {
      const kind = data.passes[rows[i][PASS]][0], paired = rows[i][START] < end ? 0 : rows[i][END] - rows[i][START];
      spent.set(kind, (spent.get(kind) || 0) + paired);
      end = rows[i][END];
    }
    let low = y + LANE;
    for (const [kind, time] of [...spent].sort()) {
      const height = time / (end - start) * LANE;
      bar(gantt, low -= height, start, end, kind, "", { height });
    }
    return i;
  }

  function drawGantt() {
    gantt.replaceChildren();
    const height = data.ranks.length * (LANE + GAP);
    size(gantt, height + AXIS);
    axis(gantt, height);
    const cell = 4 * (until - from) / wide, together = (a, b) => a && b && a[START] === b[START] && a[END] === b[END];
    data.ranks.forEach((rows, rank) => {
      const y = rank * (LANE + GAP);
      add(gantt, "rect", { class: "lane", x: LEFT, y, width: wide, height: LANE });
      add(gantt, "text", { x: 4, y: y + 17 }, "rank " + rank);
      let i = Math.max(0, lastAt(rows, START, from) - 1);
      while (i < rows.length && rows[i][START] < until) {
        const row = rows[i], kind = data.passes[row[PASS]][0];
        if (row[END] - row[START] < cell / 2 && row[END] > row[START]) { i = drawCell(y, rows, i, cell); continue; }
        const first = together(row, rows[i + 1]), second = together(rows[i - 1], row);
        bar(gantt, y + (second ? LANE / 2 : 0), row[START], row[END], kind + (row[BATCH] === chosen ? " same" : ""),
          row[STAGE] + kind + row[BATCH], { height: first || second ? LANE / 2 : LANE });
        i += 1;
      }
      const [start, end] = data.reduces[rank] || [0, 0];
      bar(gantt, y + LANE * 2 / 3, start, Math.min(end, data.makespan), "after", "", { height: LANE / 3 });
      let t = data.makespan;
      for (const [name, length] of data.after) { bar(gantt, y, t, t + length, "after", name); t += length; }
    });
  }

  function drawMemory() {
    memory.replaceChildren();
    const height = data.memory.length * (TALL + GAP);
    size(memory, height + AXIS);
    axis(memory, height);
    const top = 1.05 * Math.max(data.limit, ...data.memory.map(steps => steps.reduce((m, s) => Math.max(m, s[1]), 0)));
    data.memory.forEach((steps, rank) => {
      const base = rank * (TALL + GAP) + TALL, y = b => base - b / top * TALL;
      add(memory, "rect", { class: "lane", x: LEFT, y: base - TALL, width: wide, height: TALL });
      add(memory, "text", { x: 4, y: base - TALL / 2 }, "rank " + rank);
      let i = Math.max(0, lastAt(steps, 0, from)), path = `M${LEFT} ${base}`, last = LEFT, most = steps[i][1], now = most;
      path += `V${y(now)}`;
      for (i += 1; i < steps.length && steps[i][0] < until; i++) {
        const here = x(steps[i][0]);
        if (here - last >= .5) { path += `V${y(most)}H${here}`; last = here; most = steps[i][1]; }
        now = steps[i][1]; most = Math.max(most, now);
      }
      const right = Math.min(x(data.step), LEFT + wide);
      add(memory, "path", { class: "held", d: `${path}V${y(most)}V${y(now)}H${right}V${base}Z` });
      add(memory, "line", { class: "limit", x1: LEFT, x2: LEFT + wide, y1: y(data.limit), y2: y(data.limit) });
    });
  }

  const draw = () => { measure(); drawGantt(); drawMemory(); };

  const place = (svg, event, lane) => {
    const box = svg.getBoundingClientRect(), rank = Math.floor((event.clientY - box.top) / (lane + GAP));
    return { rank, t: from + (event.clientX - box.left - LEFT) / wide * (until - from) };
  };
  const heldAt = (rank, t) => { const steps = data.memory[rank]; return steps[Math.max(0, lastAt(steps, 0, t))][1]; };

  function facts(rank, t) {
    const rows = data.ranks[rank], i = lastAt(rows, START, t), held = "memory " + gib(heldAt(rank, t)) + " of " + gib(data.limit);
    const lines = [];
    for (const row of i > 0 ? [rows[i - 1], rows[i]] : i === 0 ? [rows[0]] : []) {
      if (t < row[START] || t >= row[END]) continue;
      const [letter, name] = data.passes[row[PASS]];
      lines.push(`${row[STAGE]}${letter}${row[BATCH]}: ${name} of micro-batch ${row[BATCH]}, stage ${row[STAGE]}`);
      lines.push(`starts ${seconds(row[START])}, takes ${seconds(row[END] - row[START])}`);
      if (row[TO] >= 0) lines.push(`then ${seconds(row[HOP])} to rank ${row[TO]}`);
      chosen = row[BATCH];
    }
    if (!lines.length) {
      chosen = -1;
      let begin = data.makespan;
      for (const [name, length] of data.after) { if (t >= begin && t < begin + length) lines.push(`${name}: ${seconds(length)}`); begin += length; }
      if (!lines.length && t < data.makespan) {
        const begin = i < 0 ? 0 : rows[i][END], end = i + 1 < rows.length ? rows[i + 1][START] : data.makespan;
        lines.push(`idle for ${seconds(end - begin)}`);
        const [start, done] = data.reduces[rank] || [0, 0];
        if (t >= start && t < done) lines.push(`data: ${seconds(done - start)}`);
      }
    }
    return [`rank ${rank} at ${seconds(t)}`, ...lines, held].join("\n");
  }

  function showTip(event, text) {
    tip.textContent = text;
    tip.style.display = "block";
    tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8) + "px";
  }
  const hideTip = () => { tip.style.display = "none"; if (chosen !== -1) { chosen = -1; drawGantt(); } };

  /* Show a span of time from start on, inside the step. */
  const show = (start, span) => {
    span = Math.min(data.step, span);
    from = Math.max(0, Math.min(data.step - span, start));
    until = from + span;
    draw();
  };
  /* Shorten or lengthen what is shown, t staying where it is. */
  const zoom = (t, factor) => show(t - (t - from) * factor, (until - from) * factor);
  const whole = () => show(0, data.step || 1);

  for (const [svg, lane] of [[gantt, LANE], [memory, TALL]]) {
    let grip = null;
    svg.addEventListener("pointerdown", event => { grip = { at: event.clientX, from, until }; svg.setPointerCapture(event.pointerId); });
    svg.addEventListener("pointerup", () => { grip = null; });
    svg.addEventListener("pointerleave", hideTip);
    svg.addEventListener("pointermove", event => {
      if (grip) {
        const shift = (event.clientX - grip.at) / wide * (grip.until - grip.from);
        show(grip.from - shift, grip.until - grip.from);
        return;
      }
      const { rank, t } = place(svg, event, lane), before = chosen;
      if (rank < 0 || rank >= data.ranks.length || t < 0 || t > data.step) { hideTip(); return; }
      showTip(event, svg === gantt ? facts(rank, t) : `rank ${rank} at ${seconds(t)}\n${gib(heldAt(rank, t))} of ${gib(data.limit)}`);
      if (chosen !== before) drawGantt();
    });
    svg.addEventListener("wheel", event => {
      event.preventDefault();
      zoom(place(svg, event, lane).t, event.deltaY < 0 ? .8 : 1.25);
    }, { passive: false });
    svg.tabIndex = 0;
    svg.addEventListener("keydown", event => {
      const middle = (from + until) / 2, tenth = (until - from) / 10;
      const act = {
        "+": () => zoom(middle, .8), "-": () => zoom(middle, 1.25), Home: whole,
        ArrowLeft: () => show(from - tenth, until - from), ArrowRight: () => show(from + tenth, until - from),
      }[event.key];
      if (act) { event.preventDefault(); act(); }
    });
  }
  document.getElementById("whole").addEventListener("click", whole);
  document.getElementById("keys").append(...[...new Set(data.ranks.flat().map(row => row[PASS]))].sort().flatMap(pass => {
    const key = document.createElement("span"); key.className = "swatch"; key.style.background = `var(--${data.passes[pass][0]})`;
    return [key, data.passes[pass].join(" ")];
  }));
  const again = () => gantt.isConnected ? draw() : removeEventListener("resize", again);
  addEventListener("resize", again);
  draw();
}
