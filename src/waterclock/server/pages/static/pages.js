"use strict";
// Times in the reader's zone, and pages that refresh when the server says so.

const formats = {dateStyle: "short", timeStyle: "medium"};
const clock = new Intl.DateTimeFormat(undefined, formats);

function showTimes(root) {
  for (const each of root.querySelectorAll("time[datetime]")) {
    // JavaScript reads milliseconds; the title keeps UTC and nanoseconds.
    const at = new Date(each.dateTime.replace(/(\.\d{3})\d+/, "$1"));
    if (!Number.isNaN(at.getTime())) each.textContent = clock.format(at);
  }
}

document.addEventListener("DOMContentLoaded", () => {
  document.getElementById("zone").textContent = Intl.DateTimeFormat().resolvedOptions().timeZone;
  showTimes(document);
  document.body.addEventListener("htmx:load", (event) => showTimes(event.detail.elt));
  if (document.body.hasAttribute("data-live")) keepFresh();
  document.addEventListener("keydown", followKey);
});

// Links that name a key are followed by it, unless the reader types or selects something.
function followKey(event) {
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.matches("input, select, textarea")) return;
  const arrows = {ArrowLeft: "\u2190", ArrowRight: "\u2192"};
  const link = document.querySelector(`[data-key="${CSS.escape(arrows[event.key] || event.key)}"]`);
  if (link !== null) {
    event.preventDefault();
    link.click();
  }
}

function keepFresh() {
  const button = document.getElementById("pause");
  const banner = document.getElementById("banner");
  let stream = null;
  let refreshed = new Date();

  function warn(text) {
    banner.textContent = text;
    banner.hidden = text === "";
  }

  function lost() {
    warn(`The server or its database does not answer. This page is as of ${clock.format(refreshed)}, and tries again.`);
  }

  // What the reader selects, types or has opened stays as it is.
  function isInUse() {
    const live = document.getElementById("live");
    const focused = document.activeElement;
    const selected = document.getSelection();
    return live.contains(focused) && focused.matches("input, select, textarea")
      || live.querySelector("details[open]") !== null
      || (selected !== null && !selected.isCollapsed && live.contains(selected.anchorNode));
  }

  function refresh() {
    if (document.hidden || isInUse()) return;
    const focused = document.activeElement ? document.activeElement.id : "";
    htmx.ajax("GET", location.href, {target: "#live", select: "#live", swap: "outerHTML"}).then(() => {
      if (focused && document.getElementById(focused)) document.getElementById(focused).focus();
    });
  }

  function start() {
    stream = new EventSource("/events");
    stream.addEventListener("refresh", refresh);
    stream.onerror = lost;
  }

  function setPaused(paused) {
    if (stream !== null) stream.close();
    stream = null;
    if (!paused) start();
    sessionStorage.setItem("paused", paused ? "yes" : "");
    button.setAttribute("aria-pressed", String(paused));
    button.textContent = paused ? "Resume refresh" : "Pause refresh";
  }

  document.body.addEventListener("htmx:afterSwap", () => {
    refreshed = new Date();
    warn("");
  });
  document.body.addEventListener("htmx:responseError", lost);
  document.body.addEventListener("htmx:sendError", lost);
  button.addEventListener("click", () => setPaused(stream !== null));
  button.hidden = false;
  setPaused(sessionStorage.getItem("paused") === "yes");
}
