// State that changes: announcements of changes, since actions do not know the views; and its part in the
// address, so that a link leads to what its sender saw.

// ---- announcements ----

export function newChanges() {
  const listeners = new Map();
  return {
    on(kinds, listener) {
      for (const kind of kinds.split(" ")) listeners.set(kind, [...(listeners.get(kind) ?? []), listener]);
    },
    announce(kind, ...values) {
      for (const listener of listeners.get(kind) ?? []) listener(...values);
    },
  };
}

// ---- the address ----

const SAVE_DELAY = 250; // ms; browsers refuse an address that changes with every key that is held

// `write` puts the state into URLSearchParams, `read` restores it from them. A change of one of the keys in `steps`
// is one step of the browser's back button.
export function newAddress({ write, read, steps }) {
  let timer = 0;
  let isRestored = false; // while one part is restored, the others in the address are not overwritten

  function save() {
    if (!isRestored) return;
    clearTimeout(timer);
    const state = new URLSearchParams();
    write(state);
    const before = new URLSearchParams(location.hash.slice(1));
    const isStep = steps.some((key) => state.get(key) !== before.get(key));
    try {
      if (isStep) history.pushState(null, "", `#${state}`);
      else history.replaceState(null, "", `#${state}`);
    } catch {
      // Sandboxed frames and browsers that saw too many changes refuse; the view works without.
    }
  }

  function saveSoon() {
    clearTimeout(timer);
    timer = setTimeout(save, SAVE_DELAY);
  }

  function restore() {
    isRestored = false;
    read(new URLSearchParams(location.hash.slice(1)));
    clearTimeout(timer);
    isRestored = true;
  }

  addEventListener("hashchange", restore);
  return { save, saveSoon, restore };
}
