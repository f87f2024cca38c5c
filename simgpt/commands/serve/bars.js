"use strict";
// Bars of parts of a whole, with their texts beneath. Colours are those of page.css, by rank.

const COLOURS = 8;

/** A new element with a class and a text. */
function element(tag, name = "", text = "") {
  const made = document.createElement(tag);
  if (name) made.className = name;
  made.textContent = text;
  return made;
}

function colour(index) {
  return `c${Math.min(index, COLOURS - 1)}`;
}

/**
 * Draw parts, each [label, number, text, share], into a place; `limit` is a number marked on the
 * bar, which then is as long as the larger of it and the sum.
 */
function drawBar(place, parts, about, limit = null) {
  const sum = parts.reduce((total, part) => total + part[1], 0);
  const length = Math.max(sum, limit === null ? 0 : limit) * (limit === null ? 1 : 1.02);
  const bar = element("div", "bar");
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", about);
  parts.forEach(([label, number, text, share], index) => {
    const piece = element("span", colour(index));
    piece.style.width = `${(100 * number) / length}%`;
    piece.title = `${label}: ${text}, ${share}`;
    bar.append(piece);
  });
  if (limit !== null) {
    const mark = element("span", "limit");
    mark.style.left = `${(100 * limit) / length}%`;
    bar.append(mark);
  }
  place.replaceChildren(bar, keyOf(parts));
}

function keyOf(parts) {
  const key = element("ul", "key");
  parts.forEach(([label, , text, share], index) => {
    const line = element("li");
    line.append(
      element("i", colour(index)), element("span", "", label),
      element("span", "value", text), element("span", "value", share),
    );
    key.append(line);
  });
  return key;
}

/** Draw where a value stands in its range, from 0 to the range's end and a little more. */
function drawRange(place, low, value, high, about) {
  const length = high * 1.1;
  const within = element("i"), mark = element("b");
  within.style.left = `${(100 * low) / length}%`;
  within.style.width = `${(100 * (high - low)) / length}%`;
  mark.style.left = `${(100 * value) / length}%`;
  place.setAttribute("aria-label", about);
  place.title = about;
  place.replaceChildren(within, mark);
}

/** A row of a waterfall: what is left before and after it, in per cent of `length`. */
function stepOf(before, after, length, isSum) {
  const cell = element("td", "drawn"), bar = element("i", isSum ? "" : after < before ? "lost" : "won");
  const low = isSum ? 0 : Math.min(before, after);
  bar.style.marginLeft = `${(100 * low) / length}%`;
  bar.style.width = `${(100 * (isSum ? after : Math.abs(after - before))) / length}%`;
  cell.append(bar);
  return cell;
}

/** Draw rows, each [name, remedy, change, left], into the body of a table; sums have no change. */
function drawWaterfall(body, rows) {
  const levels = rows.map((row) => parseFloat(row[3]));
  const length = Math.max(...levels);
  body.replaceChildren(...rows.map(([name, remedy, change, left], index) => {
    const row = element("tr", change ? "" : "sum");
    row.append(
      element("td", "", name), stepOf(levels[Math.max(index - 1, 0)], levels[index], length, !change),
      element("td", "number", change), element("td", "number", left), element("td", "", remedy),
    );
    return row;
  }));
}
