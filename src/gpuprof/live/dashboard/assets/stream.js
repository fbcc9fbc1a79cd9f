// The one stream of a page. A hidden page has none: browsers allow six connections to a server.

const RETRY_MS = 3_000;
const HIDDEN_MS = 10_000;

export function followServer({ onHello, onTick, onProblem, onState }) {
  let source = null;
  let timer = 0;

  function open() {
    clearTimeout(timer);
    if (source !== null) return;
    source = new EventSource("/events");
    source.addEventListener("hello", (event) => {
      onState("live");
      onHello(JSON.parse(event.data));
    });
    source.addEventListener("tick", (event) => onTick(JSON.parse(event.data)));
    source.addEventListener("problem", (event) => onProblem(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      onState("lost");
      // The browser tries again itself, but not after an error that the server sent.
      if (source?.readyState === EventSource.CLOSED) retry();
    });
  }

  function retry() {
    close();
    timer = setTimeout(open, RETRY_MS);
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
