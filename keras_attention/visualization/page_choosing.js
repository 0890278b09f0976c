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
