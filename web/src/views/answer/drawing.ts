// Drawing at the model's own resolution: the paper, the pen, and lines between two points.

export type Colour = [number, number, number];

export function css([r, g, b]: Colour): string {
  return `rgb(${r} ${g} ${b})`;
}

/** "#rrggbb" as a colour, and back. */
export function fromHex(hex: string): Colour {
  const n = parseInt(hex.slice(1), 16);
  return [n >> 16, (n >> 8) & 255, n & 255];
}

export function toHex(colour: Colour): string {
  return "#" + colour.map((c) => c.toString(16).padStart(2, "0")).join("");
}

/** The paper of the pictures a model knows: the colour most of an example's pixels have, or white where none stands out. */
export function paper(pixels: Uint8ClampedArray): Colour {
  const counts = new Map<number, number>();
  for (let i = 0; i < pixels.length; i += 4) {
    const key = (pixels[i] << 16) | (pixels[i + 1] << 8) | pixels[i + 2];
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  let best = 0xffffff;
  let most = pixels.length / 16; // a quarter of the pixels
  for (const [key, count] of counts) if (count > most) [best, most] = [key, count];
  return [best >> 16, (best >> 8) & 255, best & 255];
}

/** A pen that is seen on the paper: white on dark, black on light. */
export function pen(paper: Colour): Colour {
  return 0.3 * paper[0] + 0.59 * paper[1] + 0.11 * paper[2] < 128 ? [255, 255, 255] : [0, 0, 0];
}

/** The width of a pen's line in pixels of the model. */
export function nib(height: number, width: number): number {
  return Math.max(1, Math.min(height, width) / 14);
}

export function stroke(to: CanvasRenderingContext2D, from: [number, number], until: [number, number], colour: Colour, wide: number) {
  to.strokeStyle = to.fillStyle = css(colour);
  to.lineWidth = wide;
  to.lineCap = to.lineJoin = "round";
  to.beginPath();
  if (from[0] === until[0] && from[1] === until[1]) {
    to.arc(from[0], from[1], wide / 2, 0, 2 * Math.PI);
    to.fill();
  } else {
    to.moveTo(...from);
    to.lineTo(...until);
    to.stroke();
  }
}

const LARGEST = 10_000_000; // bytes of a file: as many as the server reads

/** A file as a data address, unread: the server decodes it, within its limits. */
export function dataUrl(file: Blob): Promise<string> {
  if (file.size > LARGEST) {
    const size = Math.ceil(file.size / 1e5) / 10;
    return Promise.reject(new Error(`This file has ${size} MB, and a picture may have at most ${LARGEST / 1e6}; make it smaller.`));
  }
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.onerror = () => reject(new Error("This file could not be read; choose another."));
    reader.readAsDataURL(file);
  });
}

export function load(url: string): Promise<HTMLImageElement> {
  return new Promise((resolve, reject) => {
    const image = new Image();
    image.onload = () => resolve(image);
    image.onerror = () => reject(new Error("This is no picture the browser can show."));
    image.src = url;
  });
}
