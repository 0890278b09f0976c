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
