import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig, type Plugin } from "vite";

/** The script is also written inside an HTML file: nothing in it may look like the end or the start of an element. */
function inlinable(): Plugin {
  return {
    name: "inlinable",
    generateBundle(_, bundle) {
      for (const file of Object.values(bundle)) {
        if (file.type === "chunk") file.code = file.code.replace(/<(?=!--|\/?script)/gi, "\\x3C");
      }
    },
  };
}

/** The words of docs/glossary.md with their one line: the page has no other place for them. */
function glossary(): Plugin {
  const name = "virtual:glossary", file = new URL("../docs/glossary.md", import.meta.url).pathname;
  return {
    name: "glossary",
    resolveId: (id) => (id === name ? `\0${name}` : undefined),
    async load(id) {
      if (id !== `\0${name}`) return;
      this.addWatchFile(file);
      const text = await this.fs.readFile(file, { encoding: "utf8" }), lines: Record<string, string> = {};
      for (const table of text.split(/^## /m).slice(1)) {
        const rows = table.split("\n").filter((line) => line.startsWith("|")).map((line) => line.slice(1, -1).split(/(?<!\\)\|/).map((cell) => cell.trim()));
        const [head, , ...words] = rows, line = head.indexOf("in one line");
        // a document's own words are not the page's: of them the field's word is
        const named = Math.max(head.indexOf("word"), head.indexOf("in the field") * Number(!head.includes("word")));
        for (const row of words) for (const word of row[named].split(", ")) if (word.length > 1) lines[word.toLowerCase()] = row[line].replaceAll("`", "");
      }
      return `export default ${JSON.stringify(lines)}`;
    },
  };
}

/** The licences of the packages whose code is in the script: at its head, which goes into every file, and by themselves. */
function licences(): Plugin {
  return {
    name: "licences",
    async generateBundle(_, bundle) {
      const chunks = Object.values(bundle).filter((file) => file.type === "chunk");
      const modules = chunks.flatMap((chunk) => Object.entries(chunk.modules).filter(([, { renderedLength }]) => renderedLength > 0));
      const folders = modules.flatMap(([path]) => /^.*\/node_modules\/(?:@[^/]+\/)?[^/]+/.exec(path) ?? []);
      const read = (path: string) => this.fs.readFile(path, { encoding: "utf8" });
      const licence = async (folder: string) => {
        const { name, version, license } = JSON.parse(await read(`${folder}/package.json`));
        const file = (await this.fs.readdir(folder)).find((one) => /^licen[cs]e/i.test(one));
        if (!file) throw new Error(`${name} is in the script, and has no file with its licence`);
        return `${name} ${version} (${license})\n\n${(await read(`${folder}/${file}`)).trim()}`;
      };
      const typeface = `STIX Two (OFL-1.1), cut down by tools/typeface.py\n\n${(await read("src/fonts/LICENSE")).trim()}`;
      const text = [...(await Promise.all([...new Set(folders)].sort().map(licence))), typeface].join("\n\n");
      for (const chunk of chunks) chunk.code = `/*!\n${text}\n*/\n${chunk.code}`;
      this.emitFile({ type: "asset", fileName: "LICENSES.txt", source: `${text}\n` });
    },
  };
}

export default defineConfig({
  plugins: [svelte(), glossary(), licences(), inlinable()],
  publicDir: false,
  build: {
    outDir: "../src/pencil/page",
    emptyOutDir: false, // two files with fixed names: nothing is missing while they are written
    target: "es2022",
    modulePreload: false,
    cssCodeSplit: false,
    assetsInlineLimit: 1e6,
    rollupOptions: {
      input: "src/main.ts",
      output: { format: "iife", entryFileNames: "app.js", assetFileNames: "app.css", inlineDynamicImports: true },
    },
  },
});
