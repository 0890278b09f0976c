"use strict";

// Up to so many words stand in columns, with lines between; more are a text.
const FEW = 40;
// How many of the largest weights the table has.
const LISTED = 10;
// Lines of less than this share of the largest weight are not drawn.
const FAINT = 0.03;
// Longer words are cut.
const LONG = 100;
// Pixels: of a label of rows and columns, of the picture of a head, and at most of that of all pairs.
const [LABEL, THUMBNAIL, MATRIX] = [11, 42, 4096];
const MEAN = -1;
const LABELS = { queries: "rows", keys: "columns" };
const SIDES = Object.keys(LABELS);

const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
// `chosen` is {side: "queries" or "keys", place}, or null; `listed` the layer whose words are on the page.
const shown = { layer: 0, head: MEAN, listed: null, weights: null, chosen: null, kept: false, asked: null };

const layer = () => data.layers[shown.layer];
const text = (side) => data.texts[layer()[side]];
const size = (side) => text(side).length;
const other = (side) => (side === "queries" ? "keys" : "queries");
const isChosen = (side, place) => shown.chosen?.side === side && shown.chosen.place === place;
const clamp = (side, place) => Math.min(Math.max(place, 0), size(side) - 1);
const inColumns = () => Math.max(...SIDES.map(size)) <= FEW;
const touch = matchMedia("(hover: none)");
// By the number of levels in which weights are stored; the last two have signs.
const ARRAYS = { 65535: Uint16Array, 255: Uint8Array, 32767: Int16Array, 127: Int8Array };
const signed = data.levels in { 32767: 1, 127: 1 };

const largest = (numbers) => numbers.reduce((most, number) => Math.max(most, Math.abs(number)), 0);
const average = (numbers) => numbers.reduce((sum, number) => sum + number, 0) / numbers.length;
const format = (weight) => weight.toFixed(data.levels > 255 ? 4 : 3);
const quoted = (side, place) => `“${short(text(side)[place])}”`;

function short(word) {
  // A letter has two units at most, so that one more than fits is among these.
  const start = Array.from(word.slice(0, 2 * LONG + 2));
  return start.length > LONG ? `${start.slice(0, LONG - 1).join("")}…` : word;
}

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Weights

const loaded = [];

/** The weights of a layer's heads, row by row, and of their mean, which comes last. */
async function heads(number) {
  const tables = await Promise.all(Array.from({ length: data.layers[number].heads }, (_, head) => unpack(number, head)));
  const sum = new Float32Array(tables[0].length);
  for (const table of tables) for (let at = 0; at < sum.length; at++) sum[at] += table[at];
  return [...tables, sum.map((weight) => weight / tables.length)];
}

/** The weights of a head, stored as the largest of each row, then shares of it. */
async function unpack(number, head) {
  const bytes = Uint8Array.from(atob($(`weights-${number}-${head}`).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const most = new Float32Array(buffer, 0, data.texts[data.layers[number].queries].length);
  const levels = new ARRAYS[data.levels](buffer, most.byteLength);
  const width = levels.length / most.length;
  return new Float32Array(levels).map((level, at) => (level * most[Math.floor(at / width)]) / data.levels);
}

/** Weights between the chosen word and each of the other side; for none chosen, of keys on average. */
function weightsOf(chosen) {
  const width = size("keys");
  if (chosen?.side === "queries") return shown.weights.slice(chosen.place * width, (chosen.place + 1) * width);
  if (chosen) return shown.weights.filter((_, at) => at % width === chosen.place);
  const received = new Float32Array(width);
  // Of a causal layer, the mean is over the queries that see a key: the first would lead otherwise.
  const seeing = (key) => size("queries") - (layer().causal ? key : 0);
  shown.weights.forEach((weight, at) => (received[at % width] += weight / seeing(at % width)));
  return received;
}

/** The share of weights on words that are not on the page, of the chosen query or of all. */
function onOthers() {
  const { others } = layer();
  if (!others || shown.chosen?.side === "keys") return "";
  const tables = shown.head === MEAN ? others : [others[shown.head]];
  const part = average(tables.map((rows) => (shown.chosen ? rows[shown.chosen.place] : average(rows))));
  const rounded = part < 0.01 ? "Less than 1" : part > 0.99 && part < 1 ? "More than 99" : Math.round(100 * part);
  return part ? `${rounded}% on other positions` : "";
}

// Drawing

/** The end of the scale of a heat map, which the largest weights of three in four queries do not exceed. */
function endOf(weights) {
  const width = size("keys");
  const each = Array.from({ length: size("queries") }, (_, row) => largest(weights.slice(row * width, (row + 1) * width)));
  const seen = each.filter(Boolean).sort((one, other) => one - other);
  return seen[Math.ceil(0.75 * (seen.length - 1))] || 1;
}

/** Draws weights on a canvas, a pixel each, or the largest of a few where it has fewer pixels. */
function draw(canvas, weights, limit) {
  const [rows, columns] = SIDES.map(size);
  canvas.height = Math.min(rows, limit);
  canvas.width = Math.min(columns, limit);
  const cells = new Float32Array(canvas.height * canvas.width);
  for (let row = 0, at = 0; row < rows; row++) {
    const start = Math.floor((row * canvas.height) / rows) * canvas.width;
    for (let column = 0; column < columns; column++, at++) {
      const cell = start + Math.floor((column * canvas.width) / columns);
      if (Math.abs(weights[at]) > Math.abs(cells[cell])) cells[cell] = weights[at];
    }
  }
  const style = getComputedStyle(document.documentElement);
  const [accent, against] = ["--accent", "--against"].map((name) => {
    const value = style.getPropertyValue(name).trim();
    return [1, 3, 5].map((start) => parseInt(value.slice(start, start + 2), 16));
  });
  const scale = 255 / endOf(weights);
  const image = new ImageData(canvas.width, canvas.height);
  cells.forEach((weight, cell) => {
    image.data.set([...(weight < 0 ? against : accent), Math.abs(weight) * scale], 4 * cell);
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function drawLines(most) {
  const [rows, width] = [Math.max(...SIDES.map(size)), size("keys")];
  const paths = [];
  shown.weights.forEach((weight, at) => {
    const places = { queries: Math.floor(at / width), keys: at % width };
    const share = Math.abs(weight) / most;
    if (share < FAINT || (shown.chosen && places[shown.chosen.side] !== shown.chosen.place)) return;
    const [from, to] = [places.queries + 0.5, places.keys + 0.5];
    const opacity = shown.chosen ? 0.15 + 0.85 * share : 0.75 * share;
    const look = `stroke-opacity="${opacity.toFixed(3)}" stroke-width="${(0.75 + 3 * share).toFixed(2)}"`;
    const sign = weight < 0 ? 'class="against" ' : "";
    paths.push(`<path ${sign}d="M0 ${from}C50 ${from} 50 ${to} 100 ${to}" ${look}/>`);
  });
  $("lines").setAttribute("viewBox", `0 0 100 ${rows}`);
  $("lines").style.height = `calc(${rows} * var(--row))`;
  $("lines").innerHTML = paths.join("");
}

/** Words beside the rows and above the columns of all pairs, every few where not all have room. */
function label() {
  for (const [side, extent, start] of [["queries", "clientHeight", "top"], ["keys", "clientWidth", "left"]]) {
    const every = Math.ceil((LABEL * size(side)) / Math.max($("matrix")[extent], 1));
    const labels = text(side).flatMap((word, place) => {
      if (place % every) return [];
      const made = element("span", { dir: "auto", "data-at": place }, short(word));
      made.style[start] = `${(100 * (place + 0.5)) / size(side)}%`;
      return made;
    });
    $(LABELS[side]).replaceChildren(...labels);
  }
  markLabels();
}

function markLabels() {
  for (const side of SIDES) {
    for (const made of $(LABELS[side]).children) made.classList.toggle("chosen", isChosen(side, Number(made.dataset.at)));
  }
}

/** What can be done next. */
function hint() {
  const [see, weight] = ["to see what it attends to.", "for its weight."];
  if (touch.matches) return shown.chosen ? `Tap a word of the other side ${weight}` : `Tap a word ${see}`;
  if (!shown.chosen) return `Point at a word ${see}`;
  return shown.kept ? `Kept. Point at another word ${weight}` : "Click or press Enter to keep it.";
}

/** Shows what is chosen: tints, lines, table, and where it is among all pairs. */
function paint() {
  const { chosen } = shown;
  const side = chosen ? other(chosen.side) : "keys";
  const weights = weightsOf(chosen);
  const most = largest(weights) || 1;
  const few = inColumns();
  for (const list of SIDES) {
    Array.from($(list).children).forEach((span, place) => {
      const share = list === side ? Math.abs(weights[place]) / most : 0;
      span.style.setProperty("--share", share.toFixed(3));
      span.classList.toggle("against", list === side && weights[place] < 0);
      span.ariaSelected = isChosen(list, place);
      if (few) span.lastChild.textContent = chosen && share >= FAINT ? format(weights[place]) : "";
    });
  }
  markLabels();
  if (few) drawLines(chosen ? most : largest(shown.weights) || 1);
  $("chosen").textContent = chosen
    ? quoted(chosen.side, chosen.place) + (side === "keys" ? " attends to" : " is attended to by")
    : `${signed ? "Largest" : "Attended to most"}${size("queries") > 1 ? ", on average" : ""}`;
  $("pair").textContent = hint();
  $("others").textContent = onOthers();
  const order = Array.from(weights.keys()).sort((a, b) => Math.abs(weights[b]) - Math.abs(weights[a]));
  const rows = order.slice(0, LISTED).map((place) => {
    const bar = element("i", {});
    bar.style.setProperty("--share", (Math.abs(weights[place]) / most).toFixed(3));
    bar.classList.toggle("against", weights[place] < 0);
    return element(
      "tr",
      {},
      element("td", { dir: "auto" }, short(text(side)[place]), " ", element("small", {}, place + 1)),
      element("td", { "aria-hidden": true }, bar),
      element("td", {}, format(weights[place])),
    );
  });
  $("largest").replaceChildren(...rows);
  $("frame").hidden = !chosen;
  if (chosen) {
    const count = size(chosen.side);
    const [before, after] = [chosen.place, count - 1 - chosen.place].map((places) => `${(100 * places) / count}%`);
    $("frame").style.inset = side === "keys" ? `${before} 0 ${after}` : `0 ${after} 0 ${before}`;
  }
}

/** Shows another layer or head. Not when a later choice has overtaken it. */
async function show(number, head) {
  Object.assign(shown, { layer: number, head });
  const tables = await (loaded[number] ??= heads(number));
  if (shown.layer !== number || shown.head !== head) return;
  shown.weights = tables.at(head);
  if (shown.listed !== number) list(tables);
  draw($("matrix"), shown.weights, MATRIX);
  const end = endOf(shown.weights);
  const beyond = largest(shown.weights) > end;
  $("most").textContent = `${beyond ? "≥ " : ""}${format(end)}`;
  $("least").textContent = signed ? `${beyond ? "≤ " : ""}${format(-end)}` : 0;
  const name = head === MEAN ? "mean of the heads" : `head ${head + 1}`;
  $("shown").textContent = [layer().name, layer().heads > 1 ? name : ""].filter(Boolean).join(", ");
  paint();
}

/** Lists the words and heads of a layer, of which nothing is chosen. */
function list(tables) {
  Object.assign(shown, { listed: shown.layer, chosen: null, kept: false });
  const [rows, columns] = SIDES.map(size);
  const names = layer().pools ? ["Pooling", "Words"] : ["Queries: what looks", "Keys: what is looked at"];
  SIDES.forEach((side, at) => {
    $(`${side}-name`).textContent = names[at];
    const spans = text(side).map((word, place) => {
      const name = `${short(word)}, ${place + 1} of ${size(side)}`;
      const attributes = { role: "option", tabindex: place ? -1 : 0, "aria-label": name, "data-place": place };
      return element("span", attributes, element("b", { dir: "auto" }, short(word)), element("small", { "aria-hidden": true }));
    });
    // With spaces, so that a text breaks into lines, and is read as words where it is copied.
    $(side).replaceChildren(...spans.flatMap((span) => [span, " "]));
  });
  $("words").classList.toggle("columns", inColumns());
  const axes = layer().pools ? "learned queries, columns are words" : "queries, columns are keys";
  $("axes").textContent = `Rows are ${axes}.`;
  $("matrix").parentElement.style.aspectRatio = `${columns} / ${Math.min(Math.max(rows, columns / 8), 2 * columns)}`;
  $("matrix").setAttribute("aria-label", `Weights of ${rows} queries and ${columns} keys; the table has the largest.`);
  $("heads").hidden = layer().heads === 1;
  const choices = [MEAN, ...Array(layer().heads).keys()].map((head) => {
    const input = element("input", { type: "radio", name: "head", value: head });
    input.checked = head === shown.head;
    const picture = element("canvas", { "aria-hidden": true });
    const name = element("span", {}, picture, head === MEAN ? "mean" : head + 1);
    draw(picture, tables.at(head), THUMBNAIL);
    return element("label", {}, input, name);
  });
  $("heads").replaceChildren($("heads").firstElementChild, ...choices);
  label();
}

// Choosing

function choose(chosen, kept = false) {
  Object.assign(shown, { chosen, kept });
  paint();
}

const leave = () => shown.kept || choose(null);

function sayPair(query, key) {
  const weight = shown.weights[query * size("keys") + key];
  $("pair").textContent = `${quoted("queries", query)} → ${quoted("keys", key)}: ${format(weight)}`;
}

function point(side, place) {
  if (!shown.kept) choose({ side, place });
  else if (shown.chosen.side === "queries" && side === "keys") sayPair(shown.chosen.place, place);
  else if (shown.chosen.side !== side) sayPair(place, shown.chosen.place);
}

function keep(side, place) {
  const again = shown.kept && isChosen(side, place);
  // A mouse goes on pointing at the word; a finger has left it.
  choose(again && touch.matches ? null : { side, place }, !again);
}

function onWord(side, type, act) {
  $(side).addEventListener(type, (event) => {
    const span = event.target.closest("[data-place]");
    if (span) act(Number(span.dataset.place), event);
  });
}

for (const side of SIDES) {
  onWord(side, "pointerover", (place) => point(side, place));
  $(side).addEventListener("pointerleave", leave);
  onWord(side, "click", (place) => {
    // A finger cannot point: it asks for the weight first, and chooses the second time.
    const asks = touch.matches && shown.kept && shown.chosen.side !== side && shown.asked !== place;
    shown.asked = asks ? place : null;
    (asks ? point : keep)(side, place);
  });
  onWord(side, "focusin", (place, { target }) => {
    if (!target.matches(":focus-visible")) return;
    for (const span of $(side).children) span.tabIndex = span === target ? 0 : -1;
    choose({ side, place }, shown.kept);
    const rows = Array.from($("largest").rows).slice(0, 3);
    const words = rows.map(({ cells: [word, , weight] }) => `${word.firstChild.data} ${weight.textContent}`);
    const spoken = [`${$("chosen").textContent} ${words.join(", ")}`, $("others").textContent];
    $("spoken").textContent = spoken.filter(Boolean).join("; ");
  });
  onWord(side, "keydown", (place, event) => {
    const [next, before] = [place + 1, place - 1];
    const goals = { ArrowRight: next, ArrowDown: next, ArrowLeft: before, ArrowUp: before, Home: 0, End: Infinity };
    const goal = goals[event.key];
    if (goal !== undefined) $(side).children[clamp(side, goal)].focus();
    else if (event.key === "Enter" || event.key === " ") keep(side, place);
    else return;
    event.preventDefault();
  });
}

document.addEventListener("keydown", (event) => event.key === "Escape" && choose(null));

function onPair(type, act) {
  $("matrix").addEventListener(type, ({ offsetX, offsetY, target }) => {
    const query = clamp("queries", Math.floor((offsetY / target.clientHeight) * size("queries")));
    act("queries", query);
    sayPair(query, clamp("keys", Math.floor((offsetX / target.clientWidth) * size("keys"))));
  });
}
onPair("pointermove", (side, place) => shown.kept || choose({ side, place }));
onPair("click", keep);
$("matrix").addEventListener("pointerleave", leave);
new ResizeObserver(label).observe($("matrix"));

$("layer").append(...data.layers.map(({ name }, number) => element("option", { value: number }, name)));
$("layers").hidden = data.layers.length === 1;
$("layer").addEventListener("change", (event) => {
  const number = Number(event.target.value);
  show(number, data.layers[number].heads > shown.head ? shown.head : MEAN);
});
$("heads").addEventListener("change", (event) => show(shown.layer, Number(event.target.value)));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  shown.listed = null;
  show(shown.layer, shown.head);
});
if (data.levels <= 255) {
  const error = signed ? "0.4%" : "0.2%";
  $("rounding").textContent = `Weights are stored in 8 bits: each is right to ${error} of the largest of its query.`;
}
document.body.classList.toggle("signed", signed);
show(0, MEAN);
