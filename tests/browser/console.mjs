// Every page and every action of the console in a real Chromium, with axe-core on each page: `scripts/test-console` runs it.
// Arguments: the line of console_world.py, the folder for screenshots.

import { createRequire } from "node:module";
import { readFileSync, mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import assert from "node:assert/strict";

const require = createRequire(join(process.env.CONSOLE_MODULES, "x.js"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const world = JSON.parse(process.argv[2]);
const shots = process.argv[3];
if (shots) mkdirSync(shots, { recursive: true });
const only = process.env.CONSOLE_ONLY;

const profile = mkdtempSync(join(tmpdir(), "aerobee-chromium-"));
const context = await chromium.launchPersistentContext(profile, {
  timezoneId: "America/New_York",
  executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
  headless: true,
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  viewport: { width: 1280, height: 860 },
  colorScheme: "light",
  reducedMotion: "reduce", // axe-core measures colours, which are others in the middle of a transition
  bypassCSP: false,
});
context.setDefaultTimeout(60_000);
const page = await context.newPage();
const troubles = [];
page.on("pageerror", (error) => troubles.push(`error on the page: ${error.message}`));
page.on("console", (message) => { if (message.type() === "error" && !/status of 4|status of 5/.test(message.text())) troubles.push(`console: ${message.text()}`); });

let checked = 0;
async function check(name, { shot = false } = {}) {
  await page.waitForFunction(() => !document.querySelector("main[aria-busy]"));
  // By the debugger: the page's own rules let no foreign script in.
  const session = await context.newCDPSession(page);
  await session.send("Runtime.evaluate", { expression: axe });
  const { result } = await session.send("Runtime.evaluate", {
    expression: "axe.run(document, {resultTypes: ['violations']}).then(found => JSON.stringify(found.violations.map(v => ({id: v.id, nodes: v.nodes.map(n => n.html + ' ' + n.failureSummary).slice(0, 3)}))))",
    awaitPromise: true,
  });
  await session.detach();
  const violations = JSON.parse(result.value);
  assert.deepEqual(violations, [], `${name}: axe-core finds ${JSON.stringify(violations, null, 1)}`);
  checked += 1;
  if (shot && shots) await page.screenshot({ path: join(shots, `${name}.png`) });
}

async function open(route, heading, url = world.url) {
  await page.goto(`${url}#/${route}`);
  await page.locator("main h1", { hasText: heading }).waitFor();
  await page.waitForFunction(() => !document.querySelector("main[aria-busy]"));
}

async function done(dialog, said) {
  await dialog.getByRole("button", { name: "Apply" }).click();
  await dialog.locator(".good", { hasText: said }).waitFor();
  await dialog.getByRole("button", { name: "Close" }).click();
}

async function perform(button, title) {
  await button.click();
  const dialog = page.locator("dialog[open]");
  await dialog.locator("h2", { hasText: title }).waitFor();
  await dialog.locator(".command pre").waitFor();
  const command = await dialog.locator(".command pre").textContent();
  return { dialog, command };
}

const steps = {
  async overview() {
    await open("overview", "Overview");
    await page.locator("td", { hasText: "orders" }).first().waitFor();
    await page.waitForFunction(() => /\d/.test(document.querySelector(".tiles").textContent));
    await page.locator("figure.chart path.line").first().waitFor();
    await check("overview", { shot: true });
    // By keyboard and as a table.
    const plot = page.getByRole("slider", { name: /^Messages/ });
    await plot.focus();
    await page.keyboard.press("Home");
    assert.match(await plot.getAttribute("aria-valuetext"), /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d: In (no value|[\d.,]+\/s)/);
    const first = await plot.getAttribute("aria-valuetext");
    await page.keyboard.press("ArrowRight");
    assert.notEqual(await plot.getAttribute("aria-valuetext"), first);
    await page.keyboard.press("Escape");
    assert.match(await plot.getAttribute("aria-valuetext"), /^now: /);
    await page.locator("figure.chart summary").first().click();
    await page.locator("figure.chart td", { hasText: /\/s$/ }).first().waitFor();
    await page.getByRole("button", { name: "1m", exact: true }).click();
    await page.waitForFunction(() => document.querySelector(".charts-head [aria-pressed=true]").textContent === "1m");
    // The page is still updated, and the button keeps the focus.
    await page.evaluate(() => { document.querySelector("main .tiles").dataset.old = "yes"; });
    await page.waitForFunction(() => !document.querySelector("main .tiles[data-old]"));
    await page.waitForFunction(() => document.activeElement.textContent === "1m");
    await page.getByRole("button", { name: "1d", exact: true }).click({ force: true }); // needs --prometheus: nothing happens
    assert.equal(await page.locator(".charts-head [aria-pressed=true]").textContent(), "1m");
    await check("charts-as-tables");
    await page.getByRole("button", { name: "10m", exact: true }).click();
  },
  async topology() {
    await open("topology", "Topology");
    await page.locator("li.node", { hasText: "NameServer" }).first().waitFor();
    await page.locator("section[aria-label^='Group '] td", { hasText: /^slave$/ }).first().waitFor();
    await check("topology", { shot: true });
    const card = page.locator("section[aria-label^='Group ']").first();
    const { dialog, command } = await perform(card.getByRole("button", { name: "Drain" }), "read-only");
    assert.match(command, /aerobee cluster drain \S+ --yes/);
    await dialog.getByRole("button", { name: "Close" }).click();
    await done((await perform(card.getByRole("button", { name: "Accept messages" }), "writable")).dialog, /is writable again/);
  },
  async brokers() {
    await open("brokers", "Brokers");
    await page.locator("td", { hasText: /^up$/ }).first().waitFor();
    assert.ok((await page.locator("td", { hasText: /^slave$/ }).count()) >= 1);
    await page.waitForFunction(() => /\d\/s/.test(document.querySelector("main").textContent));
    await check("brokers", { shot: true });
    await page.locator("main tbody a").first().click();
    await page.locator("main h1", { hasText: "Broker " }).waitFor();
    await page.locator("figure.chart path.line").first().waitFor();
    await page.locator("figure.chart h3", { hasText: "Latency of sends" }).waitFor();
    await check("broker", { shot: true });
  },
  async topics() {
    await open("topics", "Topics");
    await page.getByLabel("Filter").fill("orders");
    await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 1);
    await page.getByLabel("Filter").fill("");
    await page.waitForFunction(() => document.querySelectorAll("tbody tr").length > 1);
    await check("topics", { shot: true });
    // Sorted down, up, and as the page has it.
    const names = () => page.locator("tbody tr td:first-child").allTextContents();
    const before = await names();
    const sort = page.getByRole("button", { name: "Topic", exact: true });
    await sort.click();
    await page.locator("th[aria-sort=descending]").waitFor();
    assert.deepEqual(await names(), [...before].sort().reverse());
    await sort.click();
    await page.locator("th[aria-sort=ascending]").waitFor();
    assert.deepEqual(await names(), [...before].sort());
    await check("topics-sorted");
    await sort.click();
    await page.locator("th[aria-sort]").waitFor({ state: "detached" });
    await page.getByLabel("Name").fill("made-here");
    await page.getByLabel("Queues at each broker").fill("3");
    const { dialog, command } = await perform(page.getByRole("button", { name: "Create" }), "Create a topic");
    assert.match(command, /aerobee topic create made-here --queues 3/);
    await dialog.getByRole("button", { name: "Apply" }).click();
    await dialog.locator(".good").waitFor();
    await dialog.getByRole("button", { name: "Close" }).click();
  },
  async topic() {
    await open("topic?name=made-here", "Topic made-here");
    await page.locator("td", { hasText: "read and write" }).first().waitFor();
    await check("topic-new");
    await open("topic?name=orders", "Topic orders");
    await page.locator("main a", { hasText: "clerks" }).waitFor();
    await check("topic", { shot: true });
    await open("topic?name=made-here", "Topic made-here");
    await page.getByLabel("Queues at each broker").fill("5");
    await page.getByLabel("Permission", { exact: true }).selectOption("r");
    const update = await perform(page.getByRole("button", { name: "Preview" }), "Change topic made-here");
    assert.match(update.command, /aerobee topic update made-here --queues 5 --perm r --yes/);
    await done(update.dialog, /topic made-here is changed at/);
    await page.locator("td strong", { hasText: /^read$/ }).first().waitFor();
    const { dialog } = await perform(page.getByRole("button", { name: "Delete" }), "Delete topic made-here");
    await dialog.getByRole("button", { name: "Apply" }).click();
    await dialog.locator(".error", { hasText: "to confirm" }).waitFor();
    await dialog.getByLabel("Write made-here to confirm").fill("made-here");
    await dialog.getByRole("button", { name: "Apply" }).click();
    await dialog.locator(".good", { hasText: "is deleted" }).waitFor();
    await check("dialog");
    await dialog.getByRole("button", { name: "Close" }).click();
  },
  // How long a page of thousands of topics takes, printed and not judged: CONSOLE_TOPICS=5000 CONSOLE_ONLY=wide scripts/test-console
  async wide() {
    if (!world.topics) return;
    for (let turn = 0; turn < 5; turn += 1) {
      await page.goto("about:blank");
      const start = performance.now();
      await page.goto(`${world.url}#/topics`);
      await page.locator("tbody tr").nth(99).waitFor();
      await page.getByRole("button", { name: "Next" }).waitFor();
      console.log(`a page of ${world.topics} topics: ${Math.round(performance.now() - start)} ms until it can be used`);
    }
    const first = await page.locator("tbody tr a").first().textContent();
    await page.getByRole("button", { name: "Next" }).click();
    await page.waitForFunction((name) => document.querySelector("tbody tr a").textContent !== name, first);
    await page.getByLabel("Filter").fill("wide-0001");
    await page.locator("caption", { hasText: "10 topics" }).waitFor();
  },
  async groups() {
    await open("groups", "Groups");
    await page.locator("td", { hasText: "slow" }).first().waitFor();
    await check("groups", { shot: true });
  },
  async group() {
    await open("group?name=slow", "Group slow");
    await page.locator("td", { hasText: "mixed" }).first().waitFor();
    await page.locator("main td", { hasText: /^5\.5\.0$/ }).first().waitFor();
    const reasons = page.locator("details", { hasText: "Why does it lag" });
    if (!(await reasons.getAttribute("open"))) await reasons.locator("summary").click();
    await reasons.locator("ol.findings li").first().waitFor();
    await page.evaluate(() => document.activeElement.blur());
    await check("group", { shot: true });
    await page.getByLabel("To", { exact: true }).selectOption("time");
    await page.getByLabel(/^Time/).fill("2026-11-21T10:00:00");
    const byTime = await perform(page.getByRole("button", { name: "Preview" }), "Reset offsets of slow");
    assert.match(byTime.command, /--to 2026-11-21T15:00:00\.000Z/); // the browser is in New York
    await byTime.dialog.getByRole("button", { name: "Close" }).click();
    await page.getByLabel("To", { exact: true }).selectOption("relative");
    await page.getByLabel("Offset", { exact: true }).fill("-3");
    const back = await perform(page.getByRole("button", { name: "Preview" }), "Reset offsets of slow");
    assert.match(back.command, /--to -3 --yes/);
    await back.dialog.getByRole("button", { name: "Close" }).click();
    await page.getByLabel("To", { exact: true }).selectOption("latest");
    const { dialog, command } = await perform(page.getByRole("button", { name: "Preview" }), "Reset offsets of slow");
    assert.match(command, /aerobee offset reset slow --topic \S+ --to latest --yes/);
    await dialog.locator("th", { hasText: "before" }).waitFor();
    if (shots) await page.screenshot({ path: join(shots, "offset-reset.png") });
    await dialog.getByRole("button", { name: "Apply" }).click();
    await dialog.locator(".good", { hasText: "reset to latest" }).waitFor();
    await dialog.getByRole("button", { name: "Close" }).click();
    await page.getByLabel("Retries", { exact: true }).fill("5");
    const less = await perform(page.getByRole("button", { name: "Change", exact: true }), "Change group slow");
    assert.match(less.command, /aerobee group update slow --retries 5/);
    await done(less.dialog, /group slow is changed at/);
    await page.locator("section, main").locator("h2", { hasText: "Rebalances" }).waitFor();
  },
  async messages() {
    await open("messages", "Messages");
    await page.getByText("Choose a topic to see its newest messages.").waitFor();
    await page.getByLabel("Topic", { exact: true }).fill("orders");
    await page.getByRole("button", { name: "Find" }).click();
    await page.locator("table.messages tbody tr").nth(40).waitFor();
    const newest = await page.locator("table.messages caption").textContent();
    assert.match(newest, /^50 messages/);
    await check("messages", { shot: true });
    // A row opens to the whole message.
    await page.locator("table.messages button.plain").first().click();
    await page.locator("article pre").first().waitFor();
    await check("message-open", { shot: true });
    await page.getByRole("button", { name: "Older messages" }).click();
    await page.waitForFunction(() => document.querySelector("table.messages caption").textContent !== "50 messages");
    const shown = Number.parseInt(await page.locator("table.messages caption").textContent(), 10);
    assert.ok(shown > 50);
    const [saved] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Download as JSON lines" }).click()]);
    const lines = readFileSync(await saved.path(), "utf8").trim().split("\n").map((line) => JSON.parse(line));
    assert.equal(lines.length, shown);
    assert.ok(lines.every((line) => line.topic === "orders" && line.encoding === "utf-8"));
    await page.locator("summary", { hasText: "Columns" }).click();
    await page.getByLabel("Properties", { exact: true }).check();
    await page.getByLabel("JSON path").fill("$.order");
    await page.keyboard.press("Tab");
    await page.locator("th", { hasText: "$.order" }).waitFor();
    await check("messages-columns");
    await page.getByLabel("Properties", { exact: true }).uncheck();
    // By key: the only row is open.
    await page.locator("label", { hasText: /^Show/ }).locator("select").selectOption("key");
    await page.getByLabel("What", { exact: true }).fill("o-17");
    await page.getByRole("button", { name: "Find" }).click();
    await page.locator("article pre", { hasText: '"order": 17' }).waitFor();
    await page.getByRole("button", { name: "Hex" }).click();
    await page.locator("article pre", { hasText: "7b 22 6f 72 64 65 72" }).waitFor();
    await page.getByRole("button", { name: "Text" }).click();
    await page.locator("article pre", { hasText: '{"order": 17' }).waitFor();
    // Send again, edited.
    await page.getByRole("button", { name: "Send again" }).click();
    const editor = page.locator("dialog[open]");
    await editor.getByLabel("Body", { exact: true }).fill('{"order": 1717}');
    await editor.getByLabel("Keys", { exact: true }).fill("o-1717");
    await check("send-again");
    await page.locator("dialog[open]").getByRole("button", { name: "Preview" }).click();
    const again = page.locator("dialog[open]");
    await again.locator(".command pre", { hasText: "--keys o-1717" }).waitFor();
    await done(again, /sent:/);
    await open("messages?topic=orders&by=key&what=o-1717", "Messages");
    await page.locator("article pre", { hasText: '"order": 1717' }).waitFor();
    // Filters: a tag at the broker, and text in the body.
    await open("messages?topic=orders&filter=tag&value=paid", "Messages");
    await page.locator("table.messages td", { hasText: "o-17" }).first().waitFor();
    await open("messages?topic=orders&filter=text&value=1717", "Messages");
    await page.getByText(/read, 1 match/).waitFor();
    // A binary body and hostile text, which stays text.
    await open("messages?topic=binary", "Messages");
    await page.locator("table.messages button.plain").nth(2).waitFor();
    for (const each of await page.locator("table.messages button.plain").all()) await each.click();
    await page.locator("article pre", { hasText: '"packed": true' }).waitFor();
    await page.locator("article pre", { hasText: '"price": 1.5' }).waitFor(); // CBOR
    await page.locator("article pre", { hasText: "<img src=x onerror=alert(1)>" }).waitFor();
    assert.equal(await page.locator("main img, main script").count(), 0);
    await open(`messages?topic=orders&by=id&what=${world.message}`, "Messages");
    await page.locator("article", { hasText: world.message }).waitFor();
    // As a reader types it: by the clock of the browser, which is in New York.
    const hour = await page.evaluate(() => {
      const then = new Date(Date.now() - 3_600_000);
      return new Date(then - then.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
    });
    await open(`messages?topic=orders&by=time&what=${encodeURIComponent(hour)}`, "Messages");
    await page.locator("table.messages tbody tr").first().waitFor();
    // Live rows.
    await open("messages?topic=orders", "Messages");
    await page.getByRole("button", { name: "Live" }).click();
    await page.getByText("Live: new messages appear at the top.").waitFor();
    await page.locator("table.messages caption", { hasText: "the newest first" }).waitFor();
    await page.getByRole("button", { name: "Stop" }).click();
  },
  // Appendix A of RFC 8949, and bytes that are no CBOR.
  async cbor() {
    await open("overview", "Overview");
    const wrong = await page.evaluate(async ([right, bad]) => {
      const { cbor, pretty } = await import("/static/binary.js");
      const bytes = (text) => Uint8Array.from(text.match(/../g).map((each) => Number.parseInt(each, 16)));
      const read = (text) => { try { return JSON.stringify(JSON.parse(pretty(cbor(bytes(text))))); } catch (error) { return `refused: ${error.message}`; } };
      return [...right.filter(([text, value]) => read(text) !== JSON.stringify(value)), ...bad.filter((text) => !read(text).startsWith("refused"))].map((each) => [each, read(String(each[0]))]);
    }, [
      [["83010203", [1, 2, 3]], ["8301820203820405", [1, [2, 3], [4, 5]]], ["a26161016162820203", { a: 1, b: [2, 3] }], ["bf61610161629f0203ffff", { a: 1, b: [2, 3] }], ["9f018202039f0405ffff", [1, [2, 3], [4, 5]]],
        ["81f93e00", [1.5]], ["81f97bff", [65504]], ["81fb3ff199999999999a", [1.1]], ["811bffffffffffffffff", ["18446744073709551615"]], ["8120", [-1]], ["813903e7", [-1000]], ["82f5f6", [true, null]],
        ["81c11a514b67b0", [{ tag: 1, value: 1363896240 }]], ["817f657374726561646d696e67ff", ["streaming"]], ["815f42010243030405ff", ["0x0102030405"]]],
      ["01", "8301", "9b00ffffffffffffff", "ff", "81", "9f01", "a1ff01", "811c", "a10a", "bf61", "84ffffffff", "9f".repeat(100),
        `${"a1".repeat(16)}6161${"01".repeat(16)}`], // maps as keys of maps: each doubles the text
    ]);
    assert.deepEqual(wrong, []);
  },
  async several() {
    await open("topics", "Topics", world.several);
    await page.locator("td", { hasText: "orders" }).first().waitFor();
    await check("several-clusters");
    await page.getByLabel("Cluster", { exact: true }).selectOption("nothing-there");
    await page.waitForURL(/cluster=nothing-there#\/overview/);
    await page.locator(".error", { hasText: /127\.0\.0\.1:1/ }).waitFor();
    await page.goto(`${world.several}#/overview`);
    await page.locator("td", { hasText: "orders" }).first().waitFor();
  },
  async trace() {
    await open(`trace?id=${world.message}`, "Trace");
    await page.locator("svg.trace rect").first().waitFor();
    await check("trace", { shot: true });
  },
  async why() {
    await open("why?group=slow&topic=mixed", "Why?");
    await page.locator("ol.findings li").first().waitFor();
    await check("why", { shot: true });
    // From a message: each group that consumes its topic, and then the answer for that message.
    await open(`messages?topic=orders&by=id&what=${world.message}`, "Messages");
    await page.locator("article").getByRole("link", { name: "why" }).click();
    await page.locator("h2", { hasText: "Which group?" }).waitFor();
    await check("why-of-a-message");
    await page.locator("main li").getByRole("link", { name: "clerks", exact: true }).click();
    await page.locator("ol.findings li").first().waitFor();
    assert.equal(await page.getByLabel("Message id (optional)").inputValue(), world.message);
    assert.equal(await page.getByLabel("Group", { exact: true }).inputValue(), "clerks");
  },
  async dlq() {
    await open("dlq", "Dead letters");
    await page.locator("td", { hasText: "refusing" }).waitFor();
    await check("dlq");
    await open("dlq?group=refusing", "Dead letters of refusing");
    await page.locator("td", { hasText: "its amount is negative" }).first().waitFor();
    await check("dead-letters", { shot: true });
    await page.locator("tbody").getByRole("checkbox").first().check();
    const { dialog, command } = await perform(page.getByRole("button", { name: "Redrive selected" }), "Redrive selected dead letters");
    assert.match(command, /aerobee dlq redrive refusing --id \w+/);
    await dialog.getByRole("button", { name: "Apply" }).click();
    await dialog.locator(".good", { hasText: "1 sent to the retry topic of group refusing" }).waitFor();
    await dialog.getByRole("button", { name: "Close" }).click();
    const all = await perform(page.getByRole("button", { name: "Redrive all" }), "Redrive dead letters of refusing");
    assert.match(all.command, /aerobee dlq redrive refusing --limit \d+ --yes/);
    await done(all.dialog, /[1-9]\d* sent to the retry topic of group refusing, 0 failed/);
    await open("dlq", "Dead letters");
    const row = page.locator("main tr", { hasText: "refusing" });
    await done((await perform(row.getByRole("button", { name: "Redrive" }), "Redrive dead letters of refusing")).dialog, /sent to the retry topic of group refusing, 0 failed/);
    // A dead-letter message's link to why names its group.
    await open("dlq?group=refusing", "Dead letters of refusing");
    await page.locator("main tbody button").first().click();
    await page.locator("article").getByRole("link", { name: "why" }).click();
    await page.locator("ol.findings li").first().waitFor();
    assert.equal(await page.getByLabel("Group", { exact: true }).inputValue(), "refusing");
  },
  async transactions() {
    await open("transactions", "Transactions");
    const row = (key) => page.locator("main tr", { hasText: key });
    await row("half-3").waitFor();
    await check("transactions", { shot: true });
    const asked = await perform(row("half-1").getByRole("button", { name: "Check" }), "Check transaction");
    assert.match(asked.command, /aerobee transaction check \w+/);
    await done(asked.dialog, /is asked/);
    const back = await perform(row("half-2").getByRole("button", { name: "Roll back" }), "Roll back transaction");
    assert.match(back.command, /aerobee transaction rollback \w+ --yes/);
    await done(back.dialog, /is rolled back/);
    await row("half-2").waitFor({ state: "detached" });
    const kept = await perform(row("half-3").getByRole("button", { name: "Commit" }), "Commit transaction");
    assert.match(kept.command, /aerobee transaction commit \w+ --yes/);
    await done(kept.dialog, /is committed/);
    await row("half-3").waitFor({ state: "detached" });
    await row("half-1").waitFor();
    await open("messages?topic=orders&by=key&what=half-3", "Messages");
    await page.locator("article").first().waitFor();
    await open("transactions?state=given-up", "Transactions");
    await page.locator("p", { hasText: "No transaction was given up." }).waitFor();
  },
  async timers() {
    await open("timers", "Timers");
    const row = page.locator("tr", { hasText: "later-1" });
    await row.waitFor();
    await check("timers", { shot: true });
    const before = await row.locator("td").first().textContent();
    await page.getByLabel("Reschedule: deliver in").fill("3h");
    const put = await perform(row.getByRole("button", { name: "Reschedule" }), "Reschedule a message");
    assert.match(put.command, /aerobee timer reschedule \S+ --after 3h/);
    await put.dialog.getByRole("button", { name: "Apply" }).click();
    await put.dialog.locator(".good", { hasText: "is delivered at" }).waitFor();
    await put.dialog.getByRole("button", { name: "Close" }).click();
    await page.waitForFunction((first) => { const row = [...document.querySelectorAll("tbody tr")].find((each) => each.textContent.includes("later-1")); return row && row.querySelector("td").textContent > first; }, before);
    const { dialog } = await perform(row.getByRole("button", { name: "Recall" }), "Recall a message");
    await dialog.getByRole("button", { name: "Apply" }).click();
    await dialog.locator(".good", { hasText: "is recalled" }).waitFor();
    await dialog.getByRole("button", { name: "Close" }).click();
  },
  async schedules() {
    await open("schedules", "Schedules");
    await page.getByLabel("Name").fill("daily-report");
    await page.getByLabel("Topic").fill("orders");
    await page.getByLabel("Body").fill("report");
    await page.getByLabel("Cron").fill("0 6 * * *");
    const made = await perform(page.getByRole("button", { name: "Create" }), "Create a schedule");
    assert.match(made.command, /aerobee schedule create daily-report orders report --cron '0 6 \* \* \*' --tz UTC/);
    await done(made.dialog, /is created at/);
    const row = page.locator("main tr", { hasText: "daily-report" });
    await row.waitFor();
    await row.getByRole("button", { name: "Next ticks" }).click();
    await page.locator("#ticks li").nth(4).waitFor();
    await check("schedules", { shot: true });
    const paused = await perform(row.getByRole("button", { name: "Pause" }), "Pause schedule daily-report");
    assert.match(paused.command, /aerobee schedule pause daily-report/);
    await done(paused.dialog, /is paused/);
    const resumed = await perform(row.getByRole("button", { name: "Resume" }), "Resume schedule daily-report");
    await done(resumed.dialog, /is resumed/);
    const gone = await perform(row.getByRole("button", { name: "Delete" }), "Delete schedule daily-report");
    assert.match(gone.command, /aerobee schedule delete daily-report --yes/);
    await gone.dialog.getByLabel("Write daily-report to confirm").fill("daily-report");
    await done(gone.dialog, /is deleted/);
    await row.waitFor({ state: "detached" });
  },
  async settings() {
    await open(`settings?broker=${world.broker}`, "Settings");
    await page.locator("summary", { hasText: "Retention and disk" }).waitFor();
    assert.equal(await page.locator("details.subject[open]").count(), 0);
    await check("settings", { shot: true });
    await page.getByLabel("Search all settings").fill("longPollingEnable");
    await page.locator("details.subject[open] code", { hasText: /^longPollingEnable$/ }).waitFor();
    await page.getByRole("button", { name: "Change longPollingEnable" }).click();
    assert.equal(await page.getByLabel("New value").inputValue(), "true");
    await page.getByLabel("New value").fill("false");
    await check("settings-search");
    const { dialog } = await perform(page.getByRole("button", { name: "Preview" }), "Change a setting");
    await dialog.getByRole("button", { name: "Apply" }).click();
    await dialog.locator(".good", { hasText: "longPollingEnable is false" }).waitFor();
    await dialog.getByRole("button", { name: "Close" }).click();
    await page.getByLabel("only changed ones").check();
    await page.locator("td strong", { hasText: /^false$/ }).first().waitFor(); // the changed ones are first
    assert.equal(await page.locator("details.subject").count(), 0);
  },
  async access() {
    await open("access", "Access");
    await page.locator("p", { hasText: "The cluster has no access control" }).waitFor();
    await open("access", "Access", world.access);
    await page.locator("main td", { hasText: /^root$/ }).waitFor();
    await page.getByLabel("User", { exact: true }).first().fill("alice");
    await page.getByLabel("Secret key", { exact: true }).fill("alice's secret");
    const made = await perform(page.getByRole("button", { name: "Create" }), "Create a user");
    assert.match(made.command, /aerobee user create alice --secret-env USER_SECRET/);
    assert.doesNotMatch(made.command, /alice's/);
    await made.dialog.getByRole("button", { name: "Apply" }).click();
    await made.dialog.locator(".good", { hasText: "user alice is created at" }).waitFor();
    await made.dialog.getByRole("button", { name: "Close" }).click();
    await page.locator("main td", { hasText: /^alice$/ }).waitFor();
    await page.getByLabel("User", { exact: true }).nth(1).fill("alice");
    await page.getByLabel("Resource", { exact: true }).selectOption("Topic");
    await page.getByLabel("Name or pattern").first().fill("orders*");
    await page.getByLabel("Pub", { exact: true }).check();
    await page.getByLabel("Sub", { exact: true }).check();
    const said = await perform(page.getByRole("button", { name: "Preview" }), "Set permissions");
    assert.match(said.command, /aerobee acl allow alice 'Topic:orders\*' --action Pub,Sub/);
    await said.dialog.getByRole("button", { name: "Apply" }).click();
    await said.dialog.locator(".good", { hasText: "user alice may Pub, Sub at Topic:orders*" }).waitFor();
    await said.dialog.getByRole("button", { name: "Close" }).click();
    await page.locator("main td", { hasText: "Topic:orders*" }).waitFor();
    await check("access", { shot: true });
    const row = page.locator("main tr", { hasText: "alice" }).first();
    await page.getByLabel("User", { exact: true }).first().fill("alice");
    await page.getByLabel("Secret key", { exact: true }).fill("another secret");
    const changed = await perform(page.getByRole("button", { name: "Change key" }), "Change a secret key");
    assert.match(changed.command, /aerobee user update alice --secret-env USER_SECRET/);
    await done(changed.dialog, /alice/);
    await done((await perform(row.getByRole("button", { name: "Make administrator" }), "Make administrator alice")).dialog, /alice/);
    await row.locator("td", { hasText: "administrator" }).waitFor();
    await done((await perform(row.getByRole("button", { name: "Make normal" }), "Make normal alice")).dialog, /alice/);
    await row.locator("td", { hasText: /^normal$/ }).waitFor();
    const off = await perform(row.getByRole("button", { name: "Disable" }), "Disable alice");
    assert.match(off.command, /aerobee user update alice --disable/);
    await off.dialog.getByRole("button", { name: "Apply" }).click();
    await off.dialog.locator(".good", { hasText: "disabled" }).waitFor();
    await off.dialog.getByRole("button", { name: "Close" }).click();
    await page.locator("main td", { hasText: /^disabled$/ }).waitFor();
    await done((await perform(row.getByRole("button", { name: "Enable" }), "Enable alice")).dialog, /alice/);
    await page.locator("main td", { hasText: /^disabled$/ }).waitFor({ state: "detached" });
    const back = await perform(page.getByRole("button", { name: "Delete permission" }), "Delete permission on");
    assert.match(back.command, /aerobee acl delete alice 'Topic:orders\*' --custom --yes/);
    await back.dialog.getByRole("button", { name: "Apply" }).click();
    await back.dialog.locator(".good", { hasText: "are deleted" }).waitFor();
    await back.dialog.getByRole("button", { name: "Close" }).click();
    await page.locator("p", { hasText: "There are no permissions" }).waitFor();
    const gone = await perform(row.getByRole("button", { name: "Delete" }), "Delete user alice");
    await gone.dialog.getByLabel("Write alice to confirm").fill("alice");
    await gone.dialog.getByRole("button", { name: "Apply" }).click();
    await gone.dialog.locator(".good", { hasText: "is deleted" }).waitFor();
    await gone.dialog.getByRole("button", { name: "Close" }).click();
    await page.waitForFunction(() => ![...document.querySelectorAll("main td")].some((each) => each.textContent === "alice"));
  },
  async placement() {
    await open("placement", "Placement");
    await page.locator("p", { hasText: "steps left" }).waitFor();
    await page.locator("p", { hasText: "payments is left alone" }).waitFor();
    await page.locator("pre", { hasText: /aerobee placement apply \S+ --nameserver/ }).first().waitFor();
    await page.locator("summary", { hasText: "Steps" }).click();
    await check("placement", { shot: true });
    // The same plan from the browser's own disk, and a file that is none.
    await page.getByLabel("Plan file").setInputFiles({ name: "none.json", mimeType: "application/json", buffer: Buffer.from("{}") });
    await page.locator(".error").waitFor();
  },
  async send() {
    await open("send?topic=made-to-watch", "Send and watch");
    await page.getByLabel("Body").fill('{"hello": "console"}');
    let { dialog, command } = await perform(page.getByRole("button", { name: "Send", exact: true }), "Send a message");
    assert.match(command, /aerobee send made-to-watch/);
    await dialog.getByRole("button", { name: "Apply" }).click();
    await dialog.locator(".good", { hasText: "sent:" }).waitFor();
    await dialog.getByRole("button", { name: "Close" }).click();
    await page.getByRole("button", { name: "Watch the topic" }).click();
    await page.getByText("Live: new messages appear at the top.").waitFor();
    ({ dialog } = await perform(page.getByRole("button", { name: "Send", exact: true }), "Send a message"));
    await dialog.getByRole("button", { name: "Apply" }).click();
    await dialog.locator(".good").waitFor();
    await dialog.getByRole("button", { name: "Close" }).click();
    await page.locator("table.messages td", { hasText: '"hello": "console"' }).first().waitFor();
    await check("send", { shot: true });
    await page.getByRole("button", { name: "Stop", exact: true }).click();
  },
  async login() {
    const enter = async (name, password) => {
      await page.getByLabel("Name", { exact: true }).fill(name);
      await page.getByLabel("Password").fill(password);
      await page.getByRole("button", { name: "Log in" }).click();
    };
    await open("groups", "Log in", world.login);
    await check("login", { shot: true });
    await enter("vera", "guessed");
    await page.locator(".error").waitFor();
    assert.equal(await page.getByLabel("Password").inputValue(), "");
    assert.equal(await page.locator("td").count(), 0);
    const roles = {
      vera: { role: "viewer", disabled: ["topics Create", "group?name=slow Preview", "send Send", "settings Preview"] },
      otto: { role: "operator", disabled: ["topics Create", "settings Preview"], enabled: ["group?name=slow Preview", "send Send"] },
      ada: { role: "admin", enabled: ["topics Create", "group?name=slow Preview", "send Send", "settings Preview"] },
    };
    for (const [name, { role, disabled = [], enabled = [] }] of Object.entries(roles)) {
      await enter(name, "secret");
      await page.locator("#who", { hasText: `${name}, ${role}` }).waitFor();
      for (const [places, isDisabled] of [[disabled, true], [enabled, false]]) {
        for (const place of places) {
          const [route, text] = [place.slice(0, place.indexOf(" ")), place.slice(place.indexOf(" ") + 1)];
          await page.goto(`${world.login}#/${route}`);
          const button = page.getByRole("button", { name: text, exact: true });
          await button.waitFor();
          await page.waitForFunction(() => !document.querySelector("main[aria-busy]"));
          assert.equal(await button.isDisabled(), isDisabled, `${name} at ${place}`);
          if (isDisabled) assert.match(await button.getAttribute("title"), /requires the role (operator|admin)/);
        }
      }
      if (name === "vera") await check("viewer");
      if (name === "otto") {
        await page.goto(`${world.login}#/send?topic=made-to-watch`);
        await page.getByLabel("Body").fill("by otto");
        await done((await perform(page.getByRole("button", { name: "Send", exact: true }), "Send a message")).dialog, /sent:/);
      }
      await page.getByRole("button", { name: "Log out" }).click();
      await page.locator("main h1", { hasText: "Log in" }).waitFor();
    }
    const audit = readFileSync(world.audit, "utf8").trim().split("\n").map((line) => JSON.parse(line));
    assert.ok(audit.some((line) => line.user === "otto" && line.action === "send"), JSON.stringify(audit));
    assert.ok(!audit.some((line) => JSON.stringify(line).includes("secret")));
  },
  async proxy_and_read_only() {
    await page.setExtraHTTPHeaders({ "X-User": "vera" });
    await open("topics", "Topics", world.proxy);
    await page.locator("#who", { hasText: "vera, viewer" }).waitFor();
    assert.ok(await page.getByRole("button", { name: "Create" }).isDisabled());
    await page.setExtraHTTPHeaders({});
    await page.goto("about:blank");
    await open("topics", "Log in", world.proxy);
    await open("topics", "Topics", world.read_only);
    await page.locator("#who", { hasText: "read-only" }).waitFor();
    assert.ok(await page.getByRole("button", { name: "Create" }).isDisabled());
    await check("read-only");
  },
  async keyboard() {
    await open("overview", "Overview");
    await page.reload();
    await page.locator("main h1", { hasText: "Overview" }).waitFor();
    await page.keyboard.press("Tab");
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the content");
    for (let presses = 0; presses < 8; presses += 1) {
      await page.keyboard.press("Tab");
      if ((await page.evaluate(() => document.activeElement.textContent)) === "Groups") break;
    }
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "Groups");
    await page.keyboard.press("Enter");
    await page.locator("main h1", { hasText: "Groups" }).waitFor();
    assert.equal(await page.evaluate(() => document.activeElement.id), "main");
  },
  async dark_and_narrow() {
    await page.setViewportSize({ width: 360, height: 740 });
    await page.getByRole("button", { name: "Use dark colours" }).click();
    for (const [route, heading] of [["overview", "Overview"], ["groups", "Groups"], ["group?name=slow", "Group slow"], ["settings", "Settings"], ["send", "Send and watch"], ["why", "Why?"], ["messages", "Messages"], ["access", "Access"], ["placement", "Placement"], ["timers", "Timers"], ["schedules", "Schedules"], ["topics", "Topics"], ["topology", "Topology"], ["brokers", "Brokers"], ["messages?topic=orders", "Messages"], ["topic?name=orders", "Topic orders"], ["dlq?group=refusing", "Dead letters"]]) {
      await open(route, heading);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth);
      assert.ok(wide <= 360, `${route} is ${wide} wide on a screen of 360`);
      await check(`${route.split("?")[0]}-dark-360`, { shot: route === "overview" });
    }
  },
  // For a person to look at: each page at two widths, light and dark, with nothing cut off.
  async gallery() {
    const seen = [["overview", "Overview"], ["topology", "Topology"], ["brokers", "Brokers"], [`broker?address=${world.broker}`, "Broker"], ["topics", "Topics"], ["topic?name=orders", "Topic orders"],
      ["groups", "Groups"], ["group?name=slow", "Group slow"], ["messages?topic=orders", "Messages"], ["dlq?group=refusing", "Dead letters"], ["why?group=slow", "Why?"], ["timers", "Timers"], ["schedules", "Schedules"], ["settings", "Settings"],
      ["send?topic=orders", "Send and watch"], ["transactions", "Transactions"], ["placement", "Placement"], ["access", "Access"]];
    for (const [width, height] of [[1280, 860], [390, 844]]) {
      await page.setViewportSize({ width, height });
      for (const theme of ["light", "dark"]) {
        await page.goto(world.url);
        const button = page.getByRole("button", { name: `Use ${theme} colours` });
        if (await button.count()) await button.click();
        for (const [route, heading] of seen) {
          await open(route, heading);
          const wide = await page.evaluate(() => document.documentElement.scrollWidth);
          assert.ok(wide <= width, `${route} is ${wide} wide on a screen of ${width}`);
          const name = `${route.split("?")[0]}-${theme}-${width}`;
          await check(name);
          if (shots) await page.screenshot({ path: join(shots, `${name}.png`), fullPage: true });
        }
      }
    }
  },
};

try {
  for (const [name, step] of Object.entries(steps)) {
    if (only && !only.split(",").includes(name)) continue;
    await step();
    console.log(`ok ${name}`);
  }
  assert.deepEqual(troubles, []);
  console.log(`${checked} pages without a violation`);
} catch (error) {
  if (shots) await page.screenshot({ path: join(shots, "failure.png") });
  console.error(error.message, troubles);
  process.exitCode = 1;
} finally {
  await context.close();
  rmSync(profile, { recursive: true, force: true, maxRetries: 3 });
}
