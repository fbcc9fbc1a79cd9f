// The one stream of a page. A hidden page has none: browsers allow six connections to a server.

const RETRY_MS = 3_000;
const HIDDEN_MS = 10_000;
const REASON_MS = 2_000; // below RETRY_MS

export function followServer({ onHello, onTick, onProblem, onState, onRefused }) {
  let source = null;
  let timer = 0;

  function open() {
    clearTimeout(timer);
    if (source !== null || document.hidden) return;
    source = new EventSource("/events");
    source.addEventListener("hello", (event) => {
      onState("live");
      onHello(JSON.parse(event.data));
    });
    source.addEventListener("tick", (event) => onTick(JSON.parse(event.data)));
    source.addEventListener("problem", (event) => onProblem(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      // The browser tries again itself, but not after an error that the server sent.
      if (source?.readyState === EventSource.CLOSED) retry();
      else onState("lost");
    });
  }

  async function retry() {
    close();
    timer = setTimeout(open, RETRY_MS);
    const reason = await reasonOfRefusal();
    if (source !== null) return;
    if (reason === null) onState("lost");
    else onRefused(reason);
  }

  function close() {
    source?.close();
    source = null;
  }

  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (!document.hidden) open();
    else timer = setTimeout(close, HIDDEN_MS);
  });
  open();
}

// An EventSource keeps the text of an error to itself, so the server is asked again; null if it does not refuse.
async function reasonOfRefusal() {
  const asked = new AbortController();
  setTimeout(() => asked.abort(), REASON_MS);
  try {
    const response = await fetch("/events", { signal: asked.signal });
    if (response.ok) return null;
    const text = await response.text();
    if (!response.headers.get("content-type")?.includes("json")) return text.trim() || response.statusText;
    const { message, hint } = JSON.parse(text);
    return hint ? `${message} (${hint})` : message;
  } catch {
    return null;
  } finally {
    asked.abort(); // a stream that was granted after all is not read here
  }
}
