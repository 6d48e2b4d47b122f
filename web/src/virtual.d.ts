declare module "virtual:glossary" {
  /** Each word of docs/glossary.md, in small letters, and what it means in one line. */
  const glossary: Record<string, string>;
  export default glossary;
}
