// How the page looks: kept by the browser where it keeps anything.

type Theme = "system" | "light" | "dark";

const DARK = matchMedia("(prefers-color-scheme: dark)");

function stored(name: string): string | null {
  try {
    return localStorage.getItem(`pencil.${name}`);
  } catch {
    return null; // a page inside a notebook may keep nothing
  }
}

function keep(name: string, value: string): void {
  try {
    localStorage.setItem(`pencil.${name}`, value);
  } catch {
    // it holds until the page is closed
  }
}

class Settings {
  theme = $state<Theme>((stored("theme") as Theme | null) ?? "system");
  large = $state(stored("large") === "yes");
  /** The words of the first minute that were done: draw, point, why, open. */
  coached = $state((stored("coached") ?? "").split(" ").filter(Boolean));
  private systemDark = $state(DARK.matches);
  dark = $derived(this.theme === "dark" || (this.theme === "system" && this.systemDark));

  constructor() {
    DARK.addEventListener("change", () => (this.systemDark = DARK.matches));
  }

  /** The next theme: as the system has it, light, dark. */
  turn(): void {
    this.theme = { system: "light", light: "dark", dark: "system" }[this.theme] as Theme;
    keep("theme", this.theme);
  }

  enlarge(): void {
    this.large = !this.large;
    keep("large", this.large ? "yes" : "no");
  }

  /** One of the words of the first minute is done, and does not come back. */
  done(word: string): void {
    if (this.coached.includes(word)) return;
    this.coached = [...this.coached, word];
    keep("coached", this.coached.join(" "));
  }

  /** Whether movement is unwelcome. */
  get still(): boolean {
    return matchMedia("(prefers-reduced-motion: reduce)").matches;
  }
}

export const settings = new Settings();
