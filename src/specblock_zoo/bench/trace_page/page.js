"use strict";
(() => {
  const trace = JSON.parse(document.getElementById("trace").textContent);
  const rounds = trace.rounds;
  const find = (id) => document.getElementById(id);
  const BONUS = "bonus", ROOT = "root";
  const MARKS = { accepted: "✓", bonus: "★", rejected: "×", unreached: "○", duplicate: "=", root: "●" };
  const BUCKETS = ["1", "2 to 4", "5 to 10", "beyond 10"];
  const STEP_MS = 750, SIDE = 18, GAP = 40, WIDEST = 168;
  // Rows that fit, then their pitch and letters in pixels: small trees are drawn large.
  const DENSITIES = [[8, 40, 14], [14, 30, 12.5], [Infinity, 23, 11.5]];
  const VISIBLE = { " ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍" };
  const pen = document.createElement("canvas").getContext("2d");
  const mono = getComputedStyle(document.documentElement).getPropertyValue("--mono");
  let current = 0, chosen = null, timer = 0, order = [];

  // Text reaches the document through textContent alone: whatever a model writes stays text.
  function make(tag, name, text) {
    const element = document.createElement(tag);
    if (name) element.className = name;
    if (text !== undefined) element.textContent = text;
    return element;
  }

  function spelled(text) {
    const whole = make("span", "token");
    for (const part of text.split(/([ \n\t\r])/)) {
      if (part in VISIBLE) whole.append(make("span", "gap", VISIBLE[part]));
      else if (part) whole.append(part);
    }
    return whole;
  }

  const shown = (text) => text.replace(/[ \n\t\r]/g, (gap) => VISIBLE[gap]);
  const percent = (share) => (share > 0 && share < 0.001 ? "<0.1" : (100 * share).toFixed(share < 0.1 ? 1 : 0)) + " %";
  const brief = (share) => (share >= 0.995 ? "1.0" : share < 0.01 ? "<.01" : share.toFixed(2).slice(1));
  const ms = (time) => (time < 9999.5 ? `${time.toFixed(time < 10 ? 2 : time < 1000 ? 1 : 0)} ms` : `${(time / 1000).toFixed(1)} s`);
  const figures = (pairs) => pairs.map(([name, value]) => {
    const pair = make("div");
    pair.append(make("dt", "", name), make("dd", "", value));
    return pair;
  });

  // A tree node, the root and the bonus in one shape; `key` is the node's index, or the two names above.
  function everything(round) {
    const last = round.accepted.length ? round.accepted[round.accepted.length - 1] : ROOT;
    const all = [{ key: ROOT, text: round.root, fate: ROOT, depth: 0, parent: null }];
    round.nodes.forEach((node, index) => all.push({ ...node, key: index, parent: node.parent < 0 ? ROOT : node.parent }));
    if (round.bonus !== null) {
      all.push({ key: BONUS, text: round.bonus, fate: BONUS, depth: round.accepted.length + 1, parent: last });
    }
    return all;
  }

  // What stands beside the token: mark and padding, then probability and bucket.
  function widthOf(node, size) {
    const beside = 22 + 0.7 * size + (node.prob === undefined ? 0 : 16 + 3.6 * size);
    return Math.ceil(Math.min(WIDEST, pen.measureText(shown(node.text)).width) + beside);
  }

  // Depth gives the column, the leaves give the rows; a parent stands in the middle of its children.
  function placed(all) {
    const children = new Map(all.map((node) => [node.key, []]));
    for (const node of all) if (node.parent !== null) children.get(node.parent).push(node);
    const leaves = all.filter((node) => !children.get(node.key).length).length;
    const [, pitch, size] = DENSITIES.find(([rows]) => leaves <= rows);
    pen.font = `600 ${size}px ${mono}`;
    const widths = [];
    for (const node of all) widths[node.depth] = Math.max(widths[node.depth] || 0, widthOf(node, size));
    const left = [SIDE];
    widths.forEach((width, depth) => { left[depth + 1] = left[depth] + width + GAP; });
    let row = 0;
    const places = new Map();
    const settle = (node) => {
      const below = children.get(node.key);
      below.forEach(settle);
      const ends = below.length ? [below[0], below[below.length - 1]].map((each) => places.get(each.key).y) : null;
      const y = ends ? (ends[0] + ends[1]) / 2 : SIDE + pitch / 2 + pitch * row++;
      places.set(node.key, { x: left[node.depth], y, width: widthOf(node, size), height: Math.round(0.5 * pitch + 9) });
    };
    settle(all[0]);
    return { places, size, width: left[widths.length] - GAP + SIDE, height: 2 * SIDE + pitch * row };
  }

  function edge(node, from, to, namespace) {
    const path = document.createElementNS(namespace, "path");
    const start = from.x + from.width, bend = Math.max(GAP / 2, (to.x - start) / 2);
    path.setAttribute("d", `M${start} ${from.y}C${start + bend} ${from.y} ${to.x - bend} ${to.y} ${to.x} ${to.y}`);
    const strong = node.fate === "accepted" || node.fate === BONUS;
    path.setAttribute("class", node.fate);
    path.setAttribute("stroke-width", strong ? 2.5 : (1 + 1.5 * node.path_prob).toFixed(2));
    return path;
  }

  function describe(node) {
    const said = JSON.stringify(node.text);
    if (node.fate === ROOT) return `root ${said}`;
    if (node.fate === BONUS) return `${said}, the target's own token`;
    return `${said}, depth ${node.depth}, probability ${percent(node.prob)}, bucket ${node.bucket}, ${verdictOf(node)}`;
  }

  // Tokens that no drafter forward proposed were copied from the text so far.
  const origin = (node, between) => (node.block < 0 ? "copied" : `${node.block}${between}${node.slot}`);
  const verdictOf = (node) => (node.fate === "unreached" ? "not looked at" : node.fate);

  function button(node, place) {
    const element = make("button", `node ${node.fate}`);
    element.type = "button";
    element.dataset.key = node.key;
    element.tabIndex = -1;
    element.setAttribute("aria-label", describe(node));
    element.append(make("span", "mark-of", MARKS[node.fate]), spelled(node.text));
    if (node.prob !== undefined) {
      element.append(make("span", "prob", brief(node.prob)));
      if (node.block >= 0) element.append(make("span", "bucket", `b${node.bucket}`));
      else element.classList.add("copied");
    }
    const style = element.style;
    style.setProperty("--share", node.prob === undefined ? "100%" : `${100 * node.prob}%`);
    style.left = `${place.x}px`;
    style.top = `${place.y - place.height / 2}px`;
    style.width = `${place.width}px`;
    style.height = `${place.height}px`;
    return element;
  }

  function drawTree(round) {
    const all = everything(round), { places, size, width, height } = placed(all);
    const plane = find("plane"), edges = find("edges"), canvas = find("canvas");
    plane.replaceChildren(edges);
    plane.style.setProperty("--size", `${size}px`);
    plane.style.width = `${width}px`;
    plane.style.height = `${height}px`;
    edges.replaceChildren();
    edges.setAttribute("width", width);
    edges.setAttribute("height", height);
    // Strong lines last, so that they lie on top.
    const weight = (node) => ["accepted", BONUS].indexOf(node.fate);
    for (const node of [...all].sort((a, b) => weight(a) - weight(b))) {
      if (node.parent === null) continue;
      edges.append(edge(node, places.get(node.parent), places.get(node.key), edges.namespaceURI));
    }
    order = [...all].sort((a, b) => places.get(a.key).y - places.get(b.key).y || a.depth - b.depth);
    for (const node of order) plane.append(button(node, places.get(node.key)));
    const focus = all.find((node) => node.key === BONUS) || all.find((node) => node.key === round.accepted.at(-1)) || all[0];
    const place = places.get(focus.key);
    canvas.scrollTop = place.y - canvas.clientHeight / 2;
    canvas.scrollLeft = Math.max(0, place.x + place.width + SIDE - canvas.clientWidth);
    choose(focus.key, false);
    drawRows(all);
  }

  function drawRows(all) {
    if (!find("as-table").open) return;
    const texts = new Map(all.map((node) => [node.key, node.text]));
    find("rows").replaceChildren(...all.filter((node) => node.prob !== undefined).map((node) => {
      const row = make("tr", node.fate);
      const cells = [shown(node.text), shown(texts.get(node.parent)), node.depth, origin(node, ".")];
      cells.push(percent(node.prob), percent(node.path_prob), node.bucket, verdictOf(node));
      row.append(...cells.map((cell) => make("td", "", cell)));
      return row;
    }));
  }

  function choose(key, focus) {
    chosen = order.find((node) => String(node.key) === String(key)) || null;
    for (const element of find("plane").querySelectorAll(".node")) {
      const is = chosen !== null && element.dataset.key === String(chosen.key);
      element.classList.toggle("chosen", is);
      element.tabIndex = is ? 0 : -1;
      element.setAttribute("aria-current", is);
      if (is && focus) element.focus({ preventScroll: false });
    }
    drawNode(rounds[current]);
  }

  function explained(node, round) {
    const wrote = round.committed[node.depth - 1];
    if (node.fate === ROOT) return "Root: the last token committed before this round.";
    if (node.fate === BONUS) return node.depth > 1
      ? "The target’s own token after the accepted path."
      : "The target’s own token: nothing drafted was accepted.";
    if (node.fate === "accepted") return "Accepted: the target writes this token here.";
    if (node.fate === "duplicate") return "The accepted token a second time, on a shorter path.";
    if (node.fate === "rejected") return `Rejected: the target writes “${shown(wrote.text)}” here.`;
    return "Not looked at: what stands before it was not accepted.";
  }

  function drawNode(round) {
    const box = find("node");
    if (!chosen) return box.replaceChildren(make("p", "quiet", "No node."));
    const name = make("p", "big");
    name.append(spelled(chosen.text));
    const verdict = make("p", `verdict ${chosen.fate}`, explained(chosen, round));
    const list = make("dl");
    if (chosen.prob !== undefined) {
      list.append(...figures([
        ["probability, given its parent", percent(chosen.prob)],
        ["probability of the path", percent(chosen.path_prob)],
        ["predicted rank", chosen.block < 0 ? "none" : `${BUCKETS[chosen.bucket]} (bucket ${chosen.bucket})`],
        ["block, slot", origin(chosen, ", ")],
        ["depth", chosen.depth],
        ["token id", chosen.id],
      ]));
    }
    box.replaceChildren(name, verdict, list);
  }

  function drawFigures(round) {
    const names = ["draft", "verify", "other"], sums = round.totals;
    const timeOf = (counts) => names.reduce((sum, name) => sum + counts[`${name}_ms`], 0);
    const longest = Math.max(...rounds.map(timeOf)) || 1, time = timeOf(round);
    const stack = make("div", "stack");
    stack.title = "the full width is the slowest round";
    for (const name of names) {
      const piece = make("i", name);
      piece.style.width = `${(100 * round[`${name}_ms`]) / longest}%`;
      stack.append(piece);
    }
    find("times").replaceChildren(stack);
    const rate = (value) => (value ? value.toFixed(1) : "–");
    const lines = names.map((name) => [name, ms(round[`${name}_ms`]), ms(sums[`${name}_ms`]), name]);
    lines.push(
      ["draft share", share(round), share(sums)],
      ["tokens", round.committed.length, sums.tokens],
      ["tau", "", sums.tau.toFixed(2)],
      ["accepted", `${round.accepted.length} of ${round.nodes.length}`, `${sums.accepted} of ${sums.nodes}`],
      ["tokens/s", rate(time && (1000 * round.committed.length) / time), rate(sums.tokens_per_s)],
      ["drafter forwards", round.drafter_calls, ""],
    );
    find("ledger").replaceChildren(...lines.map(([name, now, all, colour]) => {
      const line = make("tr"), head = make("th");
      head.scope = "row";
      if (colour) head.append(make("i", colour));
      head.append(name);
      line.append(head, make("td", "", now), make("td", "all", all));
      return line;
    }));
  }

  function share(counts) {
    const all = counts.draft_ms + counts.verify_ms + counts.other_ms;
    return all ? percent(counts.draft_ms / all) : "–";
  }

  function drawText() {
    let last = null;
    for (const span of find("answer").children) {
      const number = Number(span.dataset.round);
      span.hidden = number > current + 1;
      span.classList.toggle("now", number === current + 1);
      if (!span.hidden) last = span;
    }
    const page = find("page");
    if (last) page.scrollTop = last.offsetTop + last.offsetHeight - page.offsetTop - page.clientHeight + 40;
  }

  function drawTimeline() {
    const bars = find("timeline").children;
    for (let index = 0; index < bars.length; index++) {
      bars[index].classList.toggle("now", index === current);
      bars[index].classList.toggle("past", index < current);
    }
    const round = rounds[current], slider = find("timeline");
    const said = `Round ${round.number} of ${rounds.length}: ${round.accepted.length} of ${round.nodes.length} accepted`;
    slider.setAttribute("aria-valuenow", round.number);
    slider.setAttribute("aria-valuetext", said);
    const bar = bars[current];
    if (slider.scrollWidth > slider.clientWidth) slider.scrollLeft = bar.offsetLeft - slider.clientWidth / 2;
    find("number").textContent = round.number;
    const written = round.committed.map((token) => token.text).join("");
    find("status").textContent = `${said}; committed ${JSON.stringify(written)}`;
    for (const element of document.querySelectorAll("[data-go]")) {
      const stuck = { first: current === 0, previous: current === 0, next: current === rounds.length - 1, last: current === rounds.length - 1 };
      element.disabled = Boolean(stuck[element.dataset.go]);
    }
  }

  function go(index) {
    current = Math.max(0, Math.min(rounds.length - 1, index));
    const round = rounds[current];
    drawTree(round);
    drawFigures(round);
    drawText();
    drawTimeline();
    const hash = `#round=${round.number}`;
    if (location.hash !== hash) {
      // Pages inside some frames may not rewrite their address.
      try { history.replaceState(null, "", hash); } catch { /* the page works without it */ }
    }
  }

  function play(on) {
    clearInterval(timer);
    timer = 0;
    document.body.classList.toggle("playing", on);
    find("play").setAttribute("aria-label", on ? "Pause" : "Play");
    if (!on) return;
    if (current === rounds.length - 1) go(0);
    timer = setInterval(() => {
      go(current + 1);
      if (current === rounds.length - 1) play(false);
    }, STEP_MS);
  }

  function step(name) {
    if (name === "play") return play(!timer);
    play(false);
    const index = { first: 0, previous: current - 1, next: current + 1, last: rounds.length - 1 }[name];
    return go(index);
  }

  function move(by) {
    const at = order.indexOf(chosen);
    const next = order[Math.max(0, Math.min(order.length - 1, at + by))];
    choose(next.key, true);
  }

  const KEYS = { ArrowLeft: "previous", ArrowRight: "next", Home: "first", End: "last", " ": "play" };
  function pressed(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    // Space on a control is that control's own; on a node, which focus alone has chosen, it plays.
    const control = event.target.closest("button:not(.node), summary");
    if (event.key === " " && control) return;
    if (event.key in KEYS) step(KEYS[event.key]);
    else if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      if (event.target.closest("#page, .scroll")) return;
      move(event.key === "ArrowUp" ? -1 : 1);
    } else return;
    event.preventDefault();
  }

  function scrub(event) {
    if (event.type === "pointermove" && !event.buttons) return;
    const bars = [...find("timeline").children];
    const index = bars.findIndex((bar) => event.clientX < bar.getBoundingClientRect().right);
    play(false);
    const at = index < 0 ? bars.length - 1 : index;
    if (at !== current) go(at);
  }

  function fromAddress() {
    const found = /^#round=(\d+)$/.exec(location.hash);
    return found ? Number(found[1]) - 1 : 0;
  }

  function buildTimeline() {
    const most = Math.max(...rounds.map((round) => round.committed.length));
    find("timeline").setAttribute("aria-valuemax", rounds.length);
    find("timeline").append(...rounds.map((round) => {
      const bar = make("div", "round");
      bar.title = `round ${round.number}: ${round.committed.length} committed`;
      const parts = [["own", round.committed.length - round.accepted.length], ["", round.accepted.length]];
      for (const [name, count] of parts) {
        const part = make("i", name);
        part.style.height = `${(84 * count) / most}%`;
        if (count) bar.append(part);
      }
      return bar;
    }));
  }

  function buildText() {
    const piece = (token, fate, number) => {
      const span = make("span", fate, token.text);
      span.dataset.round = number;
      span.title = number ? `round ${number}` : `from reading the prompt, ${ms(trace.prefill_ms)}`;
      return span;
    };
    find("prompt").textContent = trace.header.prompt;
    find("answer").append(piece(trace.first, BONUS, 0));
    for (const round of rounds) {
      find("answer").append(...round.committed.map((token, index) =>
        piece(token, index < round.accepted.length ? "accepted" : BONUS, round.number)));
    }
  }

  function buildOverall() {
    const end = rounds.length ? rounds[rounds.length - 1].totals : null;
    const speed = end && end.tokens_per_s !== null ? end.tokens_per_s.toFixed(1) : "–";
    find("overall").append(...figures([
      ["tau", end ? end.tau.toFixed(2) : "–"],
      ["tokens", end ? end.tokens : 1],
      ["rounds", rounds.length],
      ["tokens/s", speed],
      ["draft share", end ? share(end) : "–"],
    ]));
    find("count").textContent = rounds.length;
  }

  function listen() {
    document.addEventListener("keydown", pressed);
    document.addEventListener("click", (event) => {
      const control = event.target.closest("[data-go]");
      if (!control) return;
      step(control.dataset.go);
      // A pointer leaves no focus behind, so that Space goes on to play.
      if (event.detail) control.blur();
    });
    find("timeline").addEventListener("pointerdown", scrub);
    find("timeline").addEventListener("pointermove", scrub);
    find("plane").addEventListener("click", (event) => {
      const node = event.target.closest(".node");
      if (node) choose(node.dataset.key, true);
    });
    find("plane").addEventListener("focusin", (event) => {
      const key = event.target.dataset.key;
      if (key !== undefined && (!chosen || String(chosen.key) !== key)) choose(key, false);
    });
    find("answer").addEventListener("click", (event) => {
      const number = Number(event.target.dataset.round || 0);
      if (number) { play(false); go(number - 1); }
    });
    find("as-table").addEventListener("toggle", () => drawRows(everything(rounds[current])));
    addEventListener("hashchange", () => { if (fromAddress() !== current) go(fromAddress()); });
  }

  buildOverall();
  buildText();
  if (!rounds.length) {
    find("canvas").replaceChildren(make("p", "empty", "No round: the answer ended with the token that reading the prompt gave."));
    for (const element of document.querySelectorAll("[data-go]")) element.disabled = true;
    return;
  }
  buildTimeline();
  listen();
  go(fromAddress());
})();
