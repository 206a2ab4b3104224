"use strict";
// Makes elements of pages and of drawings: for the scripts of the book and of a trace's page.
window.WORKBOOK = (() => {
  // "onclick" and its like are listeners; an attribute that is null or undefined is left out.
  function make(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined) node.setAttribute(name, value);
    }
    node.append(...children);
    return node;
  }
  function draw(tag, attributes = {}, text = null) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== null) node.textContent = text;
    return node;
  }
  return { make, draw };
})();
