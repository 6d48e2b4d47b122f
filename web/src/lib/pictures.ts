// What is on screen as a picture, SVG or PNG, without a library: boxes, texts, canvases and drawings as the browser laid
// them out. Only what lies within the element is drawn.

const SVG = "http://www.w3.org/2000/svg";
/** What the look of a drawing depends on; its own rules do not go along. */
const DRAWN = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "opacity", "font-family", "font-size", "font-style", "font-weight", "text-anchor", "dominant-baseline", "visibility"];
const CLEAR = /^(rgba\(0, 0, 0, 0\)|transparent)$/;

type Attributes = Record<string, string | number>;

function shape(name: string, attributes: Attributes, parent: Element): SVGElement {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  parent.append(made);
  return made;
}

/** An element as a drawing of its own. */
export async function asSvg(element: Element): Promise<string> {
  const box = element.getBoundingClientRect(), root = document.createElementNS(SVG, "svg");
  const [width, height] = [Math.ceil(box.width), Math.ceil(box.height)];
  for (const [key, value] of [["width", width], ["height", height], ["viewBox", `0 0 ${width} ${height}`]]) root.setAttribute(String(key), String(value));
  const faces = await fontFaces();
  if (faces) shape("style", {}, root).textContent = faces;
  shape("rect", { width, height, fill: getComputedStyle(document.documentElement).backgroundColor }, root);
  const measure = document.createElement("canvas").getContext("2d")!;
  draw(element, root, { left: box.left, top: box.top }, measure, { clips: 0 });
  return new XMLSerializer().serializeToString(root);
}

/** An element as PNG, with this many pixels for each of the screen's. */
export async function asPng(element: Element, scale = 2): Promise<Blob> {
  const box = element.getBoundingClientRect(), image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(await asSvg(element))}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [Math.ceil(box.width) * scale, Math.ceil(box.height) * scale];
  canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done, fail) => canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("The browser could not write the picture."))), "image/png"));
}

/** Let the browser save something under a name. */
export function save(blob: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** The typefaces of the page, within the picture: outside the page they are not known. */
async function fontFaces(): Promise<string> {
  const rules = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules]).filter((rule) => rule instanceof CSSFontFaceRule);
  const texts = rules.map(async (rule) => {
    const url = /url\("?([^")]+)"?\)/.exec(rule.cssText)?.[1];
    if (!url || url.startsWith("data:")) return rule.cssText;
    const bytes = new Uint8Array(await (await fetch(new URL(url, location.href))).arrayBuffer());
    let text = "";
    for (const byte of bytes) text += String.fromCharCode(byte);
    return rule.cssText.replace(url, `data:font/woff2;base64,${btoa(text)}`);
  });
  return (await Promise.all(texts)).join("\n");
}

type Origin = { left: number; top: number };

function draw(element: Element, parent: Element, origin: Origin, measure: CanvasRenderingContext2D, count: { clips: number }): void {
  const style = getComputedStyle(element), box = element.getBoundingClientRect();
  // what is folded up has a place on the page, too
  const seen = element.checkVisibility?.() ?? style.display !== "none";
  if (!seen || style.visibility === "hidden" || style.opacity === "0" || element.matches(".hidden, script, style, option")) return;
  const x = box.left - origin.left, y = box.top - origin.top, { width, height } = box;
  if (element instanceof SVGSVGElement) return drawing(element, parent, x, y);
  let into = parent;
  if (style.opacity !== "1") into = shape("g", { opacity: style.opacity }, into);
  boxOf(style, x, y, width, height, into);
  if (element instanceof HTMLCanvasElement && element.width && element.height) {
    shape("image", { x, y, width, height, href: element.toDataURL(), preserveAspectRatio: "none", "image-rendering": "pixelated" }, into);
    return;
  }
  if (element instanceof HTMLImageElement) {
    if (element.src.startsWith("data:")) shape("image", { x, y, width, height, href: element.src, preserveAspectRatio: "none", "image-rendering": style.imageRendering, ...(style.filter !== "none" ? { filter: style.filter } : {}) }, into);
    return;
  }
  if (style.overflow !== "visible" && style.display !== "inline") {
    const clip = shape("clipPath", { id: `clip-${++count.clips}` }, into);
    shape("rect", { x, y, width, height }, clip);
    into = shape("g", { "clip-path": `url(#clip-${count.clips})` }, into);
  }
  const said = element instanceof HTMLInputElement && /^(text|number)$/.test(element.type) ? element.value : element instanceof HTMLTextAreaElement ? element.value : element instanceof HTMLSelectElement ? (element.selectedOptions[0]?.text ?? "") : "";
  if (said) {
    text(said, x + parseFloat(style.paddingLeft), y + height / 2, 0, style, into, measure);
    return;
  }
  for (const child of element.childNodes) {
    if (child instanceof Element) draw(child, into, origin, measure, count);
    else if (child instanceof Text && child.data.trim()) lines(child, style, into, origin, measure);
  }
}

/** A background and the borders. */
function boxOf(style: CSSStyleDeclaration, x: number, y: number, width: number, height: number, parent: Element): void {
  const rx = Math.min(parseFloat(style.borderTopLeftRadius) || 0, width / 2, height / 2);
  if (!CLEAR.test(style.backgroundColor)) shape("rect", { x, y, width, height, rx, fill: style.backgroundColor }, parent);
  const sides = (["Top", "Right", "Bottom", "Left"] as const).map((side) => ({
    wide: style[`border${side}Style`] === "none" ? 0 : parseFloat(style[`border${side}Width`]),
    colour: style[`border${side}Color`],
    dashed: /^(dotted|dashed)$/.test(style[`border${side}Style`]),
  }));
  const drawn = sides.filter((side) => side.wide && !CLEAR.test(side.colour));
  if (drawn.length === 4 && new Set(drawn.map((side) => side.wide + side.colour)).size === 1) {
    const { wide, colour } = drawn[0];
    shape("rect", { x: x + wide / 2, y: y + wide / 2, width: Math.max(0, width - wide), height: Math.max(0, height - wide), rx, fill: "none", stroke: colour, "stroke-width": wide }, parent);
    return;
  }
  const ends = [[x, y, x + width, y], [x + width, y, x + width, y + height], [x, y + height, x + width, y + height], [x, y, x, y + height]];
  sides.forEach(({ wide, colour, dashed }, i) => {
    if (!wide || CLEAR.test(colour)) return;
    const [x1, y1, x2, y2] = ends[i];
    shape("line", { x1, y1, x2, y2, stroke: colour, "stroke-width": wide, ...(dashed ? { "stroke-dasharray": "1 2" } : {}) }, parent);
  });
}

/** The words of a text where they stand, line by line. */
function lines(node: Text, style: CSSStyleDeclaration, parent: Element, origin: Origin, measure: CanvasRenderingContext2D): void {
  const range = document.createRange();
  let line = { text: "", left: 0, right: 0, middle: 0 };
  const end = () => line.text.trim() && text(line.text, line.left - origin.left, line.middle - origin.top, line.right - line.left, style, parent, measure);
  for (const word of node.data.matchAll(/\S+\s*/g)) {
    range.setStart(node, word.index);
    range.setEnd(node, word.index + word[0].trimEnd().length);
    const box = range.getBoundingClientRect();
    if (!box.width) continue;
    const middle = box.top + box.height / 2;
    if (line.text && Math.abs(middle - line.middle) < box.height / 2) {
      line = { ...line, text: `${line.text} ${word[0].trimEnd()}`, right: box.right };
      continue;
    }
    end();
    line = { text: word[0].trimEnd(), left: box.left, right: box.right, middle };
  }
  end();
}

function text(said: string, x: number, middle: number, width: number, style: CSSStyleDeclaration, parent: Element, measure: CanvasRenderingContext2D): void {
  measure.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  const { fontBoundingBoxAscent: up, fontBoundingBoxDescent: down } = measure.measureText(said);
  const cased = style.textTransform === "uppercase" ? said.toUpperCase() : said;
  shape("text", {
    x, y: middle + (up - down) / 2, fill: style.color, "font-family": style.fontFamily, "font-size": style.fontSize, "font-style": style.fontStyle, "font-weight": style.fontWeight,
    ...(width ? { textLength: width.toFixed(2), lengthAdjust: "spacingAndGlyphs" } : {}),
  }, parent).textContent = cased;
}

/** A drawing with the look that the page's rules give it. */
function drawing(svg: SVGSVGElement, parent: Element, x: number, y: number): void {
  const copy = svg.cloneNode(true) as SVGSVGElement, box = svg.getBoundingClientRect();
  const [from, to] = [[svg, ...svg.querySelectorAll("*")], [copy, ...copy.querySelectorAll("*")]];
  from.forEach((one, i) => {
    const style = getComputedStyle(one), other = to[i];
    for (const name of DRAWN) other.setAttribute(name, style.getPropertyValue(name));
    other.removeAttribute("class");
    other.removeAttribute("style");
    if (one instanceof HTMLCanvasElement) {
      const holder = one.closest("foreignObject"), image = document.createElementNS(SVG, "image");
      for (const name of ["x", "y", "width", "height"]) image.setAttribute(name, holder?.getAttribute(name) ?? "0");
      image.setAttribute("href", one.toDataURL());
      image.setAttribute("image-rendering", "pixelated");
      image.setAttribute("preserveAspectRatio", "none");
      other.closest("foreignObject")?.replaceWith(image);
    }
  });
  for (const [name, value] of Object.entries({ x, y, width: box.width, height: box.height })) copy.setAttribute(name, String(value));
  parent.append(copy);
}
