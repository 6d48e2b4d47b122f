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

export default defineConfig({
  plugins: [svelte(), inlinable()],
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
