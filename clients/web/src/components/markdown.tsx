/** Markdown as elements of the page. No text becomes markup: HTML in it is shown as it is written. */
import type { ListItem, Nodes, TableRow } from "mdast";
import { type ComponentChildren, Fragment, type VNode, h } from "preact";
import { useMemo } from "preact/hooks";
import { extent, isPrice, isSafeLink, parseMarkdown, place } from "../lib/markdown.js";
import { CopyButton } from "./copy-button.js";
import { Formula } from "./formula.js";

/** Something to show in the text: after the character before `at`, counted in UTF-16 units. */
export interface Mark {
  at: number;
  show: VNode;
}

export function Markdown({ source, marks = [], running = false }: { source: string; marks?: readonly Mark[]; running?: boolean }) {
  const tree = useMemo(() => parseMarkdown(source), [source]);
  const placed = place(tree, marks);
  const depths = [...new Set(tree.children.flatMap((node) => (node.type === "heading" ? node.depth : [])))].sort();
  const context = { source, placed, depths, blocks: new Set<Nodes>(tree.children) };
  return <div class={running ? "words markdown running" : "words markdown"}>{children(tree, context)}</div>;
}

interface Context {
  source: string;
  placed: ReadonlyMap<Nodes, readonly Mark[]>;
  /** The levels of headings in the text, in order. They are shown as h2, h3 and so on, below the page's h1. */
  depths: readonly number[];
  /** The blocks of the text. What they contain has their direction, except code. */
  blocks: ReadonlySet<Nodes>;
}

/** Lets the browser find out whether a block is written from right to left. */
function direction(node: Nodes, { blocks }: Context): { dir?: "auto" } {
  return blocks.has(node) ? { dir: "auto" } : {};
}

function children(node: Nodes, context: Context): ComponentChildren {
  return "children" in node ? node.children.map((child, n) => <Fragment key={n}>{shown(child, context)}</Fragment>) : null;
}

/** The marks after a leaf whose text cannot be divided. */
function after(node: Nodes, { placed }: Context): ComponentChildren {
  return placed.get(node)?.map((mark, n) => <Fragment key={n}>{mark.show}</Fragment>);
}

function text(node: Nodes & { value: string }, { source, placed }: Context): ComponentChildren {
  const marks = placed.get(node);
  const [start, end] = extent(node);
  if (!marks) return node.value;
  // Escapes and entities are longer in the source than as text: then the marks follow the text.
  const exact = source.slice(start, end) === node.value;
  const parts: ComponentChildren[] = [];
  let done = 0;
  for (const [n, mark] of marks.entries()) {
    const until = exact ? Math.min(mark.at - start, node.value.length) : node.value.length;
    parts.push(node.value.slice(done, until), <Fragment key={n}>{mark.show}</Fragment>);
    done = until;
  }
  return [...parts, node.value.slice(done)];
}

function shown(node: Nodes, context: Context): ComponentChildren {
  switch (node.type) {
    case "text":
      return text(node, context);
    case "paragraph":
      return <p {...direction(node, context)}>{children(node, context)}</p>;
    case "heading":
      return h(`h${Math.min(6, 2 + Math.max(0, context.depths.indexOf(node.depth)))}`, direction(node, context), children(node, context));
    case "strong":
      return <strong>{children(node, context)}</strong>;
    case "emphasis":
      return <em>{children(node, context)}</em>;
    case "delete":
      return <del>{children(node, context)}</del>;
    case "blockquote":
      return <blockquote {...direction(node, context)}>{children(node, context)}</blockquote>;
    case "thematicBreak":
      return <hr />;
    case "break":
      return <br />;
    case "list":
      return h(node.ordered ? "ol" : "ul", { ...(node.ordered && { start: node.start ?? 1 }), ...direction(node, context) }, children(node, context));
    case "listItem":
      return node.checked == null ? <li>{children(node, context)}</li> : task(node, context);
    case "table":
      return <Table rows={node.children} align={node.align ?? []} context={context} {...direction(node, context)} />;
    case "link":
      return isSafeLink(node.url) ? (
        <a href={node.url} target="_blank" rel="noopener noreferrer nofollow">
          {children(node, context)}
        </a>
      ) : (
        children(node, context)
      );
    case "inlineCode":
      return (
        <>
          <code>{node.value}</code>
          {after(node, context)}
        </>
      );
    case "code":
      return (
        <div class="code">
          <div class="row">
            <span class="note">{node.lang ?? "text"}</span>
            <CopyButton text={node.value} label="Copy the code" />
          </div>
          <pre tabIndex={0}>
            <code>{node.value}</code>
          </pre>
          {after(node, context)}
        </div>
      );
    case "math":
    case "inlineMath":
      return formula(node, context);
    case "image":
      return (
        <>
          {node.alt || node.url}
          {after(node, context)}
        </>
      );
    case "definition":
    case "footnoteDefinition":
    case "html":
    case "imageReference":
    case "footnoteReference":
      return (
        <>
          {context.source.slice(...extent(node))}
          {after(node, context)}
        </>
      );
    default:
      return children(node, context);
  }
}

/** An item with a box, which is in the line of its text. */
function task(node: ListItem, context: Context): ComponentChildren {
  const [line, ...rest] = node.children;
  return (
    <li class="task">
      <p>
        {node.checked ? "☑ " : "☐ "}
        {line && (line.type === "paragraph" ? children(line, context) : shown(line, context))}
      </p>
      {children({ ...node, children: rest }, context)}
    </li>
  );
}

function formula(node: Nodes & { value: string }, context: Context): ComponentChildren {
  const [start, end] = extent(node);
  if (node.type === "inlineMath" && isPrice(context.source, [start, end])) return [context.source.slice(start, end), after(node, context)];
  const opening = context.source.slice(start, start + 2);
  return (
    <>
      <Formula source={node.value} block={node.type === "math" || opening === "$$" || opening === "\\["} />
      {after(node, context)}
    </>
  );
}

function Table({ rows, align, context, dir }: { rows: readonly TableRow[]; align: readonly (string | null)[]; context: Context; dir?: "auto" }) {
  const cells = (row: TableRow, kind: "th" | "td") =>
    row.children.map((cell, n) => h(kind, { key: n, class: align[n] ?? undefined, ...(kind === "th" && { scope: "col" }) }, children(cell, context)));
  const [head, ...body] = rows;
  return (
    <div class="table" tabIndex={0} role="region" aria-label="Table" dir={dir}>
      <table>
        {head && (
          <thead>
            <tr>{cells(head, "th")}</tr>
          </thead>
        )}
        <tbody>
          {body.map((row, n) => (
            <tr key={n}>{cells(row, "td")}</tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
