// SPDX-License-Identifier: LGPL-2.1-or-later
// The page of a server: tests the connection as MCP clients make it, and copies examples.
// Whatever a server says gets into the page as text only.
"use strict";

const MODERN = "2026-07-28";
const HANDSHAKE = "2025-11-25";
const MOST_SHOWN = 100;
const PATIENCE = 60000;

class Failed extends Error {}

async function post(endpoint, headers, message) {
  const response = await fetch(endpoint, {
    method: "POST",
    headers: { "Content-Type": "application/json", Accept: "application/json, text/event-stream", ...headers },
    body: JSON.stringify({ jsonrpc: "2.0", ...message }),
    signal: AbortSignal.timeout(PATIENCE),
  });
  const text = await response.text();
  if (message.id === undefined) {
    if (!response.ok) throw new Failed(`HTTP ${response.status}`);
    return { response, result: null };
  }
  const answer = answerIn(text, response.headers.get("Content-Type") || "", message.id);
  if (answer === undefined) throw new Failed(`HTTP ${response.status} without an answer`);
  if (answer.error) throw new Failed(`${answer.error.message} (${answer.error.code})`);
  return { response, result: answer.result };
}

function answerIn(text, type, id) {
  let messages;
  try {
    messages = type.startsWith("text/event-stream")
      ? text.split(/\r?\n/).filter((line) => line.startsWith("data:") && line.length > 6).map((line) => JSON.parse(line.slice(5)))
      : [JSON.parse(text)];
  } catch {
    return undefined;
  }
  return messages.find((message) => message.id === id && ("result" in message || "error" in message))
    || messages.find((message) => "error" in message && "message" in message.error);
}

async function handshake(endpoint) {
  const opened = await post(endpoint, {}, {
    id: 1,
    method: "initialize",
    params: { protocolVersion: HANDSHAKE, capabilities: {}, clientInfo: { name: "mcpd-bridge-page", version: "1" } },
  });
  const revision = opened.result.protocolVersion;
  const headers = { "MCP-Protocol-Version": revision };
  const session = opened.response.headers.get("Mcp-Session-Id");
  if (session) headers["Mcp-Session-Id"] = session;
  try {
    await post(endpoint, headers, { method: "notifications/initialized" });
    const tools = opened.result.capabilities.tools
      ? (await post(endpoint, headers, { id: 2, method: "tools/list", params: {} })).result.tools
      : [];
    return { revision, server: opened.result.serverInfo, tools };
  } finally {
    if (session) await fetch(endpoint, { method: "DELETE", headers });
  }
}

async function modern(endpoint) {
  const ask = (id, method) => post(endpoint, { "MCP-Protocol-Version": MODERN, "Mcp-Method": method }, {
    id,
    method,
    params: {
      _meta: {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": { name: "mcpd-bridge-page", version: "1" },
      },
    },
  });
  const found = (await ask(1, "server/discover")).result;
  const tools = found.capabilities.tools ? (await ask(2, "tools/list")).result.tools : [];
  const about = (found._meta || {})["io.modelcontextprotocol/serverInfo"];
  return { revision: MODERN, server: about, tools };
}

function element(name, text, className) {
  const made = document.createElement(name);
  made.textContent = harmless(text);
  if (className) made.className = className;
  return made;
}

// Control characters and those that change the direction of text are shown by their number.
function harmless(text) {
  return String(text).slice(0, 500).replace(/[\p{Cc}\p{Cf}\u2028\u2029]/gu, (char) =>
    `‹U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`);
}

async function run(title, test, endpoint, results) {
  const box = document.createElement("div");
  box.className = "result";
  box.append(element("h3", title), element("p", "Connecting …"));
  results.append(box);
  const start = performance.now();
  const lines = [];
  try {
    const found = await test(endpoint);
    const time = Math.round(performance.now() - start);
    const who = found.server ? `${found.server.name} ${found.server.version}` : "the server";
    lines.push(element("p", `Works: ${who} speaks revision ${found.revision}, ${time} ms.`, "good-result"));
    const names = found.tools.slice(0, MOST_SHOWN).map((tool) => tool.name);
    const more = found.tools.length - names.length;
    lines.push(element("p", found.tools.length === 1 ? "1 tool:" : `${found.tools.length} tools${names.length ? ":" : "."}`));
    if (names.length) {
      const list = document.createElement("ul");
      for (const name of names) list.append(element("li", name));
      if (more) list.append(element("li", `and ${more} more`));
      lines.push(list);
    }
  } catch (error) {
    const time = Math.round(performance.now() - start);
    lines.push(element("p", `Failed after ${time} ms: ${error.message}`, "bad-result"));
  }
  box.lastChild.replaceWith(...lines);
}

function offerTest() {
  const section = document.getElementById("probe");
  const button = document.getElementById("probe-start");
  const results = document.getElementById("probe-results");
  document.getElementById("probe-without").hidden = true;
  button.hidden = false;
  button.addEventListener("click", async () => {
    button.disabled = true;
    results.replaceChildren();
    try {
      await run(`With initialize (${HANDSHAKE})`, handshake, section.dataset.endpoint, results);
      await run(`With server/discover (${MODERN})`, modern, section.dataset.endpoint, results);
    } finally {
      button.disabled = false;
    }
  });
}

function offerCopies() {
  if (!navigator.clipboard) return;
  for (const block of document.querySelectorAll(".snippet pre")) {
    const button = element("button", "Copy", "quiet");
    button.type = "button";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(block.textContent);
      button.textContent = "Copied";
    });
    block.after(button);
  }
}

offerTest();
offerCopies();
