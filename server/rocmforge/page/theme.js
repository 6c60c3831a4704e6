// Runs before anything is drawn, so that the page does not flash in the other colours.
try {
  document.documentElement.dataset.theme = localStorage.getItem("rocmforge.theme") ?? "system";
} catch {
  document.documentElement.dataset.theme = "system"; // storage is switched off
}
