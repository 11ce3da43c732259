// What the page says, in the language of the participant: the server's files, one per language.

let words = JSON.parse(document.getElementById("texts").textContent);

export function say(key, values = {}) {
  return words[key].replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
}

export function isSpoken(language) {
  return words.language_code === language;
}

export async function speak(language) {
  words = await (await fetch(`texts/${encodeURIComponent(language)}`)).json();
  document.documentElement.lang = language;
}

// Fills in what stands in a template by its key.
export function fillIn(root) {
  for (const element of root.querySelectorAll("[data-text]")) {
    element.textContent = say(element.dataset.text);
  }
  for (const element of root.querySelectorAll("[data-label]")) {
    element.setAttribute("aria-label", say(element.dataset.label));
  }
}
