// Text whose contrast with what lies behind it is below WCAG 2's 4.5, or 3 where it is large.
() => {
  const numbers = (colour) => (colour.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const over = (top, under) => { const a = top.length > 3 ? top[3] : 1; return [0, 1, 2].map((i) => a * top[i] + (1 - a) * under[i]); };
  const light = (colour) => { const [r, g, b] = colour.map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) layers.push(numbers(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
  };
  const low = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), node = walker.currentNode.parentElement;
    if (!text || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(node.tagName) || !node.getClientRects().length) continue;
    const style = getComputedStyle(node), size = parseFloat(style.fontSize), bold = Number(style.fontWeight) >= 700;
    if (style.visibility === "hidden" || style.opacity === "0" || node.closest("svg rect")) continue;
    const paper = behind(node), ink = node.closest("svg") && style.fill !== "none" ? style.fill : style.color;
    if (node.closest("svg") && node.getAttribute("style")) continue;  // on a filled bank: see the test of colours
    const [a, b] = [light(over(numbers(ink), paper)), light(paper)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05), need = size >= 24 || (bold && size >= 18.66) ? 3 : 4.5;
    if (ratio < need - 0.01) low.add(`${node.tagName}.${node.className}: ${text.slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return [...low];
}
