// Drawing

const color = (name) => {
  const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
};

/** Draws weights on a canvas, a pixel each, or the largest of a few where it has fewer pixels. */
function draw(canvas, weights, rows, columns, limit) {
  const [height, width] = [Math.min(rows, limit), Math.min(columns, limit)];
  const cells = new Float32Array(height * width);
  for (let row = 0, at = 0; row < rows; row++) {
    const start = Math.floor((row * height) / rows) * width;
    for (let column = 0; column < columns; column++, at++) {
      const cell = start + Math.floor((column * width) / columns);
      if (weights[at] > cells[cell]) cells[cell] = weights[at];
    }
  }
  const [least, most] = [color("--least"), color("--largest")];
  const scale = largest(cells) || 1;
  const image = new ImageData(width, height);
  cells.forEach((weight, cell) => {
    for (let part = 0; part < 3; part++) {
      image.data[4 * cell + part] = least[part] + ((most[part] - least[part]) * weight) / scale;
    }
    image.data[4 * cell + 3] = 255;
  });
  canvas.width = width;
  canvas.height = height;
  canvas.getContext("2d").putImageData(image, 0, 0);
}

const inColumns = () => Math.max(size("queries"), size("keys")) <= FEW;

function drawLines() {
  const svg = $("lines");
  svg.toggleAttribute("hidden", !inColumns());
  if (!inColumns()) return svg.replaceChildren();
  const [rows, width] = [Math.max(size("queries"), size("keys")), size("keys")];
  svg.setAttribute("viewBox", `0 0 100 ${rows}`);
  svg.style.height = `calc(${rows} * var(--row))`;
  const most = shown.chosen ? largest(weightsOf(shown.chosen)) : shown.most;
  const drawn = [];
  shown.weights.forEach((weight, at) => {
    const places = { queries: Math.floor(at / width), keys: at % width };
    const share = weight / (most || 1);
    if (share < FAINT || (shown.chosen && places[shown.chosen.side] !== shown.chosen.place)) return;
    const [from, to] = [places.queries + 0.5, places.keys + 0.5];
    const opacity = shown.chosen ? 0.15 + 0.85 * share : 0.75 * share;
    drawn.push(
      `<path d="M0 ${from}C50 ${from} 50 ${to} 100 ${to}" stroke-opacity="${opacity.toFixed(3)}" ` +
        `stroke-width="${(0.75 + 3 * share).toFixed(2)}"/>`,
    );
  });
  svg.innerHTML = drawn.join("");
}

function element(name, content, attributes = {}) {
  const made = document.createElement(name);
  if (content !== undefined) made.textContent = content;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function short(word, letters = LONG.elsewhere) {
  // A letter has two units at most, so that one more than fits is among these.
  const start = Array.from(word.slice(0, 2 * letters + 2));
  return start.length > letters ? `${start.slice(0, letters - 1).join("")}…` : word;
}

/** Words beside the rows and above the columns of all pairs, every few where not all have room. */
function label() {
  for (const [id, side, start] of [["rows", "queries", "top"], ["columns", "keys", "left"]]) {
    const box = $("matrix").getBoundingClientRect();
    const count = size(side);
    const every = Math.ceil((LABEL.pixels * count) / Math.max(id === "rows" ? box.height : box.width, 1));
    const labels = [];
    for (let place = 0; place < count; place += every) {
      const made = element("span", short(text(side)[place], LABEL.letters), { dir: "auto", "data-at": place });
      made.style[start] = `${(100 * (place + 0.5)) / count}%`;
      labels.push(made);
    }
    const letters = Math.max(...labels.map((made) => made.textContent.length));
    $(id).style[id === "rows" ? "width" : "height"] = `${0.62 * Math.min(letters, LABEL.letters) + 0.3}em`;
    $(id).replaceChildren(...labels);
  }
  markLabels();
}

function markLabels() {
  for (const [id, side] of [["rows", "queries"], ["columns", "keys"]]) {
    for (const made of $(id).children) {
      made.classList.toggle("chosen", shown.chosen?.side === side && Number(made.dataset.at) === shown.chosen.place);
    }
  }
}

function listWords(side) {
  const list = $(side);
  const spans = text(side).map((word, place) => {
    const span = element("span", undefined, {
      role: "option",
      tabindex: place ? -1 : 0,
      "aria-selected": false,
      "aria-label": `${short(word, LONG.list)}, ${place + 1} of ${size(side)}`,
      "data-place": place,
    });
    span.append(element("b", short(word, LONG.list), { dir: "auto" }), element("small", "", { "aria-hidden": true }));
    return span;
  });
  // With spaces, so that a text breaks into lines, and is read as words where it is copied.
  list.replaceChildren(...spans.flatMap((span) => [span, " "]));
}

const spans = (side) => $(side).children;
const other = (side) => (side === "queries" ? "keys" : "queries");
const quoted = (side, place) => `“${short(text(side)[place])}”`;
const tapping = matchMedia("(hover: none)");

/** What can be done next. */
function hint() {
  const { chosen, kept } = shown;
  const see = layer().pools ? "its weights" : "what it attends to";
  if (!chosen) return `${tapping.matches ? "Tap" : "Point at"} a word to see ${see}.`;
  if (tapping.matches) return "Tap a word of the other side for its weight.";
  return kept ? "Kept. Point at another word for its weight." : "Click or press Enter to keep it.";
}

/** Tints a word, and says whether it is the chosen one. Most words of a long text stay as they are. */
function mark(span, share, selected) {
  if (span.style.getPropertyValue("--share") !== share) span.style.setProperty("--share", share);
  if (span.ariaSelected !== String(selected)) span.ariaSelected = selected;
}

/** Shows what is chosen: tints, lines, table, and where it is among all pairs. */
function paint() {
  const { chosen } = shown;
  const side = chosen ? other(chosen.side) : "keys";
  const weights = weightsOf(chosen);
  const most = largest(weights) || 1;
  for (const list of ["queries", "keys"]) {
    const few = inColumns();
    Array.prototype.forEach.call(spans(list), (span, place) => {
      const weight = list === side ? weights[place] : 0;
      mark(span, (weight / most).toFixed(3), chosen?.side === list && chosen.place === place);
      if (few) span.lastChild.textContent = chosen && weight / most >= FAINT ? format(weight) : "";
    });
  }
  drawLines();
  $("chosen").textContent = !chosen
    ? `Attended to most${size("queries") > 1 ? ", on average" : ""}`
    : quoted(chosen.side, chosen.place) + (side === "keys" ? " attends to" : " is attended to by");
  $("pair").textContent = hint();
  const elsewhere = share();
  $("others").textContent = elsewhere ? `${percent(elsewhere)} on other positions` : "";
  markLabels();
  const order = Array.from(weights.keys()).sort((a, b) => weights[b] - weights[a] || a - b);
  const rows = order.slice(0, LISTED).map((place) => {
    const row = element("tr");
    const word = element("td", short(text(side)[place]), { dir: "auto" });
    word.append(" ", element("small", place + 1));
    const bar = element("i");
    bar.style.setProperty("--share", (weights[place] / most).toFixed(3));
    const cell = element("td", undefined, { "aria-hidden": true });
    cell.append(bar);
    row.append(word, cell, element("td", format(weights[place])));
    return row;
  });
  $("largest").replaceChildren(...rows);
  for (const [id, ofSide, start, extent] of [["across", "queries", "top", "height"], ["down", "keys", "left", "width"]]) {
    const frame = $(id);
    frame.style.display = chosen?.side === ofSide ? "block" : "none";
    if (chosen?.side === ofSide) {
      frame.style[start] = `${(100 * chosen.place) / size(ofSide)}%`;
      frame.style[extent] = `${100 / size(ofSide)}%`;
    }
  }
  return order;
}

/** Shows another layer or head. Not when a later choice has overtaken it. */
async function show(number, head) {
  const changed = number !== shown.layer || !shown.weights;
  shown.layer = number;
  shown.head = head;
  const tables = await heads(number);
  if (shown.layer !== number || shown.head !== head) return;
  shown.weights = head === MEAN ? mean(tables) : tables[head];
  shown.most = largest(shown.weights);
  const [rows, columns] = [size("queries"), size("keys")];
  if (changed) {
    shown.chosen = null;
    shown.kept = false;
    listWords("queries");
    listWords("keys");
    $("words").classList.toggle("columns", inColumns());
    listHeads(tables);
    const [left, right] = layer().pools ? ["Pooling", "Words"] : ["Queries", "Keys"];
    $("queries-name").textContent = left;
    $("keys-name").textContent = right;
    $("axes").textContent = layer().pools
      ? "Rows are learned queries, columns are words."
      : "Rows are queries, columns are keys.";
  }
  draw($("matrix"), shown.weights, rows, columns, 4096);
  $("matrix").parentElement.style.aspectRatio = `${columns} / ${Math.min(Math.max(rows, columns / 8), 2 * columns)}`;
  $("matrix").setAttribute("aria-label", `Weights of ${rows} queries and ${columns} keys; the table has the largest.`);
  $("most").textContent = format(shown.most);
  label();
  const name = head === MEAN ? "mean of the heads" : `head ${head + 1}`;
  $("shown").textContent = [layer().name, layer().heads > 1 ? name : ""].filter(Boolean).join(", ");
  paint();
}

function listHeads(tables) {
  const choices = tables.length > 1 ? [MEAN, ...tables.keys()] : [0];
  $("heads").hidden = choices.length === 1;
  if (choices.length === 1) shown.head = 0;
  const labels = choices.map((head) => {
    const label = element("label");
    const input = element("input", undefined, { type: "radio", name: "head", value: head });
    input.checked = head === shown.head;
    const picture = element("canvas", undefined, { "aria-hidden": true });
    draw(picture, head === MEAN ? mean(tables) : tables[head], size("queries"), size("keys"), THUMBNAIL);
    const name = element("span");
    name.append(picture, head === MEAN ? "mean" : String(head + 1));
    label.append(input, name);
    return label;
  });
  $("heads").replaceChildren($("heads").firstElementChild, ...labels);
}
