// The picture as PNG: all rows of the present zoom, also those that are scrolled out of sight.

const IMAGE_HEIGHT_LIMIT = 8000;  // device pixels; browsers fail silently from 32,768 on

function imageSurface(app) {
  const ratio = 2;
  const width = app.stage.clientWidth;
  const rows = Math.min(app.place.levels.count, Math.floor(IMAGE_HEIGHT_LIMIT / ratio / ROW_HEIGHT));
  const height = rows * ROW_HEIGHT;
  // What is cut off is the end far from the root.
  const top = app.flame ? app.place.levels.count * ROW_HEIGHT - height : 0;
  const canvas = document.createElement("canvas");
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  return { canvas, context: canvas.getContext("2d"), width, height, top, ratio };
}

function savePng(app) {
  const surface = imageSurface(app);
  paintRows(app, surface, collectCells(app, surface));
  surface.context.globalCompositeOperation = "destination-over";
  surface.context.fillStyle = app.palette.page;
  surface.context.fillRect(0, 0, surface.width, surface.height);
  surface.canvas.toBlob((blob) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = `${document.title.replace(/[^\w.-]+/g, "-").slice(0, 80) || "flamegraph"}.png`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);  // some browsers read it after the click
  });
}
