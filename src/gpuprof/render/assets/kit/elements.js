// Elements of a page. Text of a run reaches the page through `textContent` and text nodes only.

export function newElement(tag, text, className) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

export function newButton(text, action) {
  const button = newElement("button", text);
  button.type = "button";
  button.addEventListener("click", action);
  return button;
}

export function byId(id) {
  return document.getElementById(id);
}

export function listen(id, kind, action) {
  byId(id).addEventListener(kind, action);
}

export function press(id, isPressed) {
  byId(id).setAttribute("aria-pressed", String(isPressed));
}

// Pairs of a term and its value.
export function factList(facts) {
  const list = newElement("dl");
  for (const [term, value] of facts) list.append(newElement("dt", term), newElement("dd", value));
  return list;
}

// Entries are pairs of a value and its text. A list of one is no choice and is hidden.
export function fillOptions(id, entries) {
  const options = [...entries].map(([value, text]) => {
    const option = newElement("option", text);
    option.value = value;
    return option;
  });
  byId(id).replaceChildren(...options);
  byId(id).hidden = options.length < 2;
}

// Puts a name into `element` with places where a line may break: between the words of the name.
export function setBreakable(element, name) {
  const words = name.split(/(?<=::|[._<,(›])(?=\w)/);
  element.replaceChildren(...words.flatMap((word, i) => (i ? [newElement("wbr"), word] : [word])));
}

// A sentence in place of the picture.
export function showSentence(sentence) {
  const element = byId("sentence");
  element.textContent = sentence;
  element.hidden = false;
}
