import { vitePreprocess } from "@sveltejs/vite-plugin-svelte";

export default {
  preprocess: vitePreprocess(),
  // a short class name that follows from the style alone, so that the build is the same in every folder
  compilerOptions: { cssHash: ({ hash, css }) => `s${hash(css).slice(-4)}` },
};
