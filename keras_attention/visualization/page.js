"use strict";

// Up to so many words stand in columns, with lines between; more are a text.
const FEW = 40;
// How many of the largest weights the table has.
const LISTED = 10;
// Lines of less than this share of the largest weight are not drawn.
const FAINT = 0.03;
const THUMBNAIL = 42;
// Longer words are cut: in a list, and anywhere else.
const LONG = { list: 200, elsewhere: 60 };
// Labels of rows and columns: so many letters at most, and so many pixels for each.
const LABEL = { letters: 12, pixels: 11 };
const MEAN = -1;

const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const digits = data.levels > 255 ? 4 : 3;
const format = (weight) => weight.toFixed(digits);

// What is shown: `chosen` is {side: "queries" or "keys", place}, or null.
const shown = { layer: 0, head: MEAN, chosen: null, kept: false, asked: null, weights: null, most: 1 };

// Weights

const layer = () => data.layers[shown.layer];
const text = (side) => data.texts[layer()[side]];
const size = (side) => text(side).length;
const loaded = new Map();

function heads(number) {
  if (!loaded.has(number)) {
    const count = data.layers[number].heads;
    loaded.set(number, Promise.all(Array.from({ length: count }, (_, head) => unpack(number, head))));
  }
  return loaded.get(number);
}

/** The weights of a head, row by row: the largest of each row, then shares of it. */
async function unpack(number, head) {
  const encoded = atob($(`weights-${number}-${head}`).textContent);
  const bytes = Uint8Array.from(encoded, (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const rows = data.texts[data.layers[number].queries].length;
  const largest = new Float32Array(buffer, 0, rows);
  const levels = new (data.levels > 255 ? Uint16Array : Uint8Array)(buffer, 4 * rows);
  const width = levels.length / rows;
  const weights = new Float32Array(levels.length);
  for (let row = 0, at = 0; row < rows; row++) {
    const step = largest[row] / data.levels;
    for (const end = at + width; at < end; at++) weights[at] = levels[at] * step;
  }
  return weights;
}

function mean(tables) {
  const sum = new Float32Array(tables[0].length);
  for (const table of tables) for (let at = 0; at < sum.length; at++) sum[at] += table[at];
  return sum.map((weight) => weight / tables.length);
}

const largest = (weights) => weights.reduce((most, weight) => Math.max(most, weight), 0);

/** Weights between the chosen word and each of the other side; for none chosen, of keys on average. */
function weightsOf(chosen) {
  const width = size("keys");
  if (chosen?.side === "queries") {
    return shown.weights.subarray(chosen.place * width, (chosen.place + 1) * width);
  }
  if (chosen) {
    return Float32Array.from({ length: size("queries") }, (_, row) => shown.weights[row * width + chosen.place]);
  }
  const received = new Float32Array(width);
  shown.weights.forEach((weight, at) => (received[at % width] += weight / size("queries")));
  return received;
}

/** The share of weights on words that are not on the page: of the chosen query, or of all. */
function share() {
  const { others } = layer();
  if (!others || shown.chosen?.side === "keys") return 0;
  const average = (numbers) => numbers.reduce((sum, number) => sum + number, 0) / numbers.length;
  const heads = shown.head === MEAN ? others : [others[shown.head]];
  return average(heads.map((rows) => (shown.chosen ? rows[shown.chosen.place] : average(rows))));
}

function percent(part) {
  if (part > 0 && part < 0.01) return "Less than 1%";
  return part > 0.99 && part < 1 ? "More than 99%" : `${Math.round(100 * part)}%`;
}

// Drawing

const colour = (name) => {
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
  const [least, most] = [colour("--least"), colour("--largest")];
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

// Choosing

function choose(chosen, keep = false) {
  shown.chosen = chosen;
  shown.kept = keep && chosen !== null;
  return paint();
}

function sayPair(query, key) {
  const weight = shown.weights[query * size("keys") + key];
  $("pair").textContent = `${quoted("queries", query)} → ${quoted("keys", key)}: ${format(weight)}`;
}

/** At most once a frame: a mouse moves more often. */
let waiting = null;
function soon(act) {
  if (!waiting) requestAnimationFrame(() => { const last = waiting; waiting = null; last(); });
  waiting = act;
}

function point(side, place) {
  if (!shown.kept) return choose({ side, place });
  const { chosen } = shown;
  if (chosen.side === side) return;
  if (side === "keys") sayPair(chosen.place, place);
  else sayPair(place, chosen.place);
}

function keep(side, place) {
  const again = shown.kept && shown.chosen.side === side && shown.chosen.place === place;
  // A mouse goes on pointing at the word; a finger has left it.
  if (again && tapping.matches) return choose(null);
  const order = choose({ side, place }, !again);
  const list = $(other(side));
  if (!again && !inColumns()) {
    // The panel alone: the page stays where it is.
    const word = list.children[order[0]];
    list.scrollTop = word.offsetTop - list.offsetTop - list.clientHeight / 2;
  }
}

function say(side, order) {
  const weights = weightsOf(shown.chosen);
  const words = order.slice(0, 3).map((place) => `${short(text(other(side))[place])} ${format(weights[place])}`);
  $("spoken").textContent = [`${$("chosen").textContent} ${words.join(", ")}`, $("others").textContent]
    .filter(Boolean)
    .join("; ");
}

const placeOf = (event) => {
  const span = event.target.closest("[data-place]");
  return span ? Number(span.dataset.place) : null;
};

for (const side of ["queries", "keys"]) {
  const list = $(side);
  list.addEventListener("pointerover", (event) => {
    const place = placeOf(event);
    if (place !== null && event.pointerType !== "touch") soon(() => point(side, place));
  });
  list.addEventListener("pointerleave", (event) => {
    if (!shown.kept && event.pointerType !== "touch") soon(() => shown.kept || choose(null));
  });
  list.addEventListener("click", (event) => {
    const place = placeOf(event);
    if (place === null) return;
    // A finger cannot point: it asks for the weight first, and chooses the second time.
    const asks = tapping.matches && shown.kept && shown.chosen.side !== side && shown.asked !== place;
    shown.asked = asks ? place : null;
    if (asks) point(side, place);
    else keep(side, place);
  });
  list.addEventListener("focusin", (event) => {
    const place = placeOf(event);
    if (place === null || !event.target.matches(":focus-visible")) return;
    for (const span of spans(side)) span.tabIndex = span === event.target ? 0 : -1;
    say(side, choose({ side, place }, shown.kept));
  });
  list.addEventListener("keydown", (event) => {
    const place = placeOf(event);
    const last = size(side) - 1;
    const goal = {
      ArrowRight: place + 1, ArrowDown: place + 1, ArrowLeft: place - 1, ArrowUp: place - 1, Home: 0, End: last,
    }[event.key];
    if (goal !== undefined) spans(side)[Math.min(Math.max(goal, 0), last)].focus();
    else if (event.key === "Enter" || event.key === " ") keep(side, place);
    else return;
    event.preventDefault();
  });
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") choose(null);
});

const cell = (event) => {
  const box = $("matrix").getBoundingClientRect();
  const at = (offset, extent, count) => Math.min(Math.max(Math.floor((offset / extent) * count), 0), count - 1);
  return [at(event.clientY - box.top, box.height, size("queries")), at(event.clientX - box.left, box.width, size("keys"))];
};
$("matrix").addEventListener("pointermove", (event) => {
  const [query, key] = cell(event);
  soon(() => {
    if (!shown.kept) choose({ side: "queries", place: query });
    sayPair(query, key);
  });
});
$("matrix").addEventListener("pointerleave", () => soon(() => shown.kept || choose(null)));
$("matrix").addEventListener("click", (event) => {
  const [query, key] = cell(event);
  keep("queries", query);
  sayPair(query, key);
});

$("layer").append(...data.layers.map(({ name }, number) => element("option", name, { value: number })));
$("layers").hidden = data.layers.length === 1;
$("layer").addEventListener("change", (event) => {
  const number = Number(event.target.value);
  show(number, data.layers[number].heads > shown.head ? shown.head : MEAN);
});
$("heads").addEventListener("change", (event) => show(shown.layer, Number(event.target.value)));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", async () => {
  listHeads(await heads(shown.layer));
  show(shown.layer, shown.head);
});
$("rounding").textContent = data.levels > 255
  ? ""
  : "Weights are stored in 8 bits: each is right to 0.2% of the largest of its query.";
let drawn = 0;
new ResizeObserver(() => {
  // Only for another width: labels of another number change the height.
  if (shown.weights && $("matrix").clientWidth !== drawn) label();
  drawn = $("matrix").clientWidth;
}).observe($("matrix"));
show(0, data.layers[0].heads > 1 ? MEAN : 0);
