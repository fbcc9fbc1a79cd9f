// How the JavaScript of the pages is checked; the bundler (src/gpuprof/render/bundle.py) checks its imports.
import js from "@eslint/js";

const BROWSER = `AbortController addEventListener atob Blob cancelAnimationFrame clearTimeout DecompressionStream devicePixelRatio document EventSource fetch
  getComputedStyle history innerHeight innerWidth location matchMedia Node performance requestAnimationFrame ResizeObserver
  Response setTimeout URL URLSearchParams window`;

export default [
  { ignores: ["**/*", "!src/", "!src/**/", "!src/gpuprof/**/assets/**/*.js"] },
  js.configs.recommended,
  {
    languageOptions: {
      ecmaVersion: 2024,
      sourceType: "module",
      globals: Object.fromEntries([...BROWSER.split(/\s+/), "Plotly"].map((name) => [name, "readonly"])),
    },
    rules: {
      complexity: ["error", 15],
      eqeqeq: "error",
      "no-control-regex": "off",
      "max-lines": ["error", 500],
      "max-lines-per-function": ["error", 60],
      "no-param-reassign": "error",
      "no-restricted-properties": [
        "error",
        ...["innerHTML", "outerHTML", "insertAdjacentHTML"].map((property) => ({
          property,
          message: "Text of a run reaches the page through textContent and text nodes only.",
        })),
      ],
      "no-restricted-syntax": [
        "error",
        { selector: "TemplateElement[value.raw=/\\n/]", message: "The bundler joins lines without their layout." },
        { selector: "ExportDefaultDeclaration", message: "The bundler knows named exports only." },
      ],
      "no-shadow": "error",
      "no-unused-vars": "error",
      "no-var": "error",
      "object-shorthand": "error",
      "prefer-const": "error",
      "prefer-template": "error",
    },
  },
];
