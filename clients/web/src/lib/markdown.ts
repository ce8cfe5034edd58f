/** Parses answers as Markdown, with tables and formulas, into a tree whose nodes know their place in the source. */
import type { Nodes, Root, RootContent } from "mdast";
import { fromMarkdown } from "mdast-util-from-markdown";
import { gfmFromMarkdown } from "mdast-util-gfm";
import { mathFromMarkdown } from "mdast-util-math";
import { gfm } from "micromark-extension-gfm";
import { math } from "micromark-extension-math";

export function parseMarkdown(source: string): Root {
  const tree = fromMarkdown(withDollars(source), { extensions: [gfm(), math()], mdastExtensions: [gfmFromMarkdown(), mathFromMarkdown()] });
  flatten(tree, source);
  return tree;
}

/** How deep nodes can be nested. Deeper ones, as an answer that loops can have, would exceed the browser's stack. */
const DEEPEST = 40;
/** The only children that lists, tables and their rows can have. */
const PARTS = new Set(["listItem", "tableRow", "tableCell"]);

/** Replaces nodes that are nested too deeply by their source. */
function flatten(tree: Root, source: string): void {
  let level: Nodes[] = [tree];
  for (let depth = 1; level.length; depth++) {
    for (const node of depth < DEEPEST ? [] : level)
      if ("children" in node) node.children = node.children.map((child) => (PARTS.has(child.type) ? child : asText(child, source))) as never;
    level = level.flatMap((node): Nodes[] => ("children" in node ? node.children : []));
  }
}

function asText(node: RootContent, source: string): RootContent {
  return { type: "text", value: source.slice(...extent(node)), ...(node.position && { position: node.position }) };
}

/** Matches code, in which nothing is a formula, or else a formula in LaTeX's brackets. */
const CODE_OR_FORMULA = /(?:```|~~~)[\s\S]*?(?:```|~~~|$)|`[^`\n]*`|\\\((?!\s*\\\))(.+?)\\\)|\\\[([\s\S]+?)\\\]/g;

/** Replaces `\(…\)` and `\[…\]` by `$$…$$`, which has the same length, so that no offset changes. */
function withDollars(source: string): string {
  return source.replace(CODE_OR_FORMULA, (found, inline?: string, block?: string) => {
    const formula = inline ?? block;
    return formula === undefined || formula.includes("$") ? found : ["$$", formula, "$$"].join("");
  });
}

/** Where a node begins and ends in the source, in UTF-16 units. */
export function extent(node: Nodes): [number, number] {
  return [node.position?.start.offset ?? 0, node.position?.end.offset ?? 0];
}

/** Whether the dollars around a formula in a line are prices: "$5 and $6". */
export function isPrice(source: string, [start, end]: [number, number]): boolean {
  const inner = source.slice(start + 1, end - 1);
  return source[start + 1] !== "$" && source[start] === "$" && (/^\s|\s$/.test(inner) || /\d/.test(source[end] ?? ""));
}

const LEAVES = new Set(["text", "inlineCode", "code", "html", "inlineMath", "math", "image", "imageReference", "footnoteReference"]);

/** Returns the nodes without children that show something, in order. */
function leaves(node: Nodes): Nodes[] {
  if (LEAVES.has(node.type)) return [node];
  return "children" in node ? node.children.flatMap(leaves) : [];
}

/** Assigns each mark, by its place `at` in the source, to the last leaf that begins before it. */
export function place<T extends { at: number }>(tree: Root, marks: readonly T[]): Map<Nodes, T[]> {
  const all = leaves(tree);
  const placed = new Map<Nodes, T[]>();
  for (const mark of marks) {
    const leaf = all.findLast((each) => extent(each)[0] < mark.at) ?? all[0];
    if (leaf) placed.set(leaf, [...(placed.get(leaf) ?? []), mark]);
  }
  return placed;
}

const BLOCKS = new Set(["code", "math", "html"]);

/** Inserts each text into the Markdown source at its place. Inside code or a formula, inserts it after that element. */
export function annotated(source: string, texts: readonly { at: number; text: string }[]): string {
  let [result, done] = ["", 0];
  for (const [leaf, marks] of place(parseMarkdown(source), texts))
    for (const { at, text } of marks) {
      const until = Math.max(done, leaf.type === "text" ? at : extent(leaf)[1]);
      result += `${source.slice(done, until)}${BLOCKS.has(leaf.type) ? "\n\n" : " "}${text}`;
      done = until;
    }
  return result + source.slice(done);
}

/** Whether a link leads to a web page or a mail address: no other is shown as a link. */
export function isSafeLink(url: string): boolean {
  return /^(https?:\/\/|mailto:)/i.test(url);
}
