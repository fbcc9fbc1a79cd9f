// Announcements of changes: who changes the state does not know who shows it.

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
