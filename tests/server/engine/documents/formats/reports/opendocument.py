"""OpenDocument files."""

from __future__ import annotations

from collections.abc import Mapping

from tests import files
from tests.files import zipped
from tests.server.engine.documents.formats.reports import Report

NS = (
    " ".join(
        f'xmlns:{a}="urn:oasis:names:tc:opendocument:xmlns:{b}:1.0"'
        for a, b in {
            "office": "office",
            "text": "text",
            "table": "table",
            "draw": "drawing",
            "style": "style",
            "form": "form",
            "presentation": "presentation",
            "svg": "svg-compatible",
            "number": "datastyle",
            "meta": "meta",
            "chart": "chart",
        }.items()
    )
    + ' xmlns:xlink="http://www.w3.org/1999/xlink" xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:calcext="urn:org:documentfoundation:names:experimental:calc:xmlns:calcext:1.0"'
)


def odf(body, kind="text", auto="", parts: Mapping[str, str | bytes] = {}, styles=None, mimetype=None):
    e = {
        "mimetype": mimetype or f"application/vnd.oasis.opendocument.{kind}",
        "META-INF/manifest.xml": "<m/>",
        "content.xml": f"<office:document-content {NS}><office:automatic-styles>{auto}</office:automatic-styles><office:body><office:{kind}>{body}</office:{kind}></office:body></office:document-content>",
    }
    if styles:
        e["styles.xml"] = f"<office:document-styles {NS}>{styles}</office:document-styles>"
    return zipped(e | parts)


def paragraph(t):
    return f"<text:p>{t}</text:p>"


LS = '<text:list-style style:name="L1"><text:list-level-style-number text:level="1" style:num-format="1" style:num-suffix="."/><text:list-level-style-number text:level="2" style:num-format="a" style:num-prefix="(" style:num-suffix=")"/></text:list-style><text:list-style style:name="L2"><text:list-level-style-bullet text:level="1" text:bullet-char="•"/></text:list-style><text:list-style style:name="L3"><text:list-level-style-number text:level="1" style:num-format="I" style:num-suffix="." text:start-value="3"/></text:list-style><text:list-style style:name="L4"><text:list-level-style-number text:level="1" style:num-format="1"/><text:list-level-style-number text:level="2" style:num-format="1" text:display-levels="2"/></text:list-style>'


def item(*b):
    return f"<text:list-item>{''.join(b)}</text:list-item>"


def listed(s, *i, more=""):
    return f'<text:list text:style-name="{s}"{more}>{"".join(i)}</text:list>'


REPORTS = [
    Report(
        "list",
        "a.odt",
        odf(
            listed(
                "L1",
                item(paragraph("One")),
                item(paragraph("Two"), listed("L1", item(paragraph("Sub")), item(paragraph("Sub2")))),
                item(paragraph("Three")),
            ),
            auto=LS,
        ),
        ["1. One", "2. Two", "(a) Sub", "(b) Sub2", "3. Three"],
        [],
        [],
    ),
    Report("list-bullet", "a.odt", odf(listed("L2", item(paragraph("One"))), auto=LS), ["• One"], [], []),
    Report(
        "list-start",
        "a.odt",
        odf(listed("L3", item(paragraph("One")), item(paragraph("Two"))), auto=LS),
        ["III. One", "IV. Two"],
        [],
        [],
    ),
    Report(
        "list-display",
        "a.odt",
        odf(listed("L4", item(paragraph("One"), f"<text:list>{item(paragraph('Sub'))}</text:list>")), auto=LS),
        ["1 One", "1.1 Sub"],
        [],
        [],
    ),
    Report(
        "list-continue",
        "a.odt",
        odf(
            listed("L1", item(paragraph("One")))
            + paragraph("between")
            + listed("L1", item(paragraph("Two")), more=' text:continue-numbering="true"'),
            auto=LS,
        ),
        ["1. One", "2. Two"],
        [],
        [],
    ),
    Report(
        "list-value",
        "a.odt",
        odf(listed("L1", f'<text:list-item text:start-value="7">{paragraph("Seven")}</text:list-item>'), auto=LS),
        ["7. Seven"],
        [],
        [],
    ),
    Report(
        "list-header",
        "a.odt",
        odf(listed("L1", f"<text:list-header>{paragraph('Head')}</text:list-header>", item(paragraph("One"))), auto=LS),
        ["Head", "1. One"],
        ["1. Head"],
        [],
    ),
    Report(
        "list-two-paras",
        "a.odt",
        odf(listed("L1", item(paragraph("One"), paragraph("More"))), auto=LS),
        ["1. One More"],
        ["2."],
        [],
    ),
    Report(
        "list-in-styles",
        "a.odt",
        odf(listed("L1", item(paragraph("One"))), styles=f"<office:styles>{LS}</office:styles>"),
        ["1. One"],
        [],
        [],
    ),
    Report(
        "heading-outline",
        "a.odt",
        odf(
            '<text:h text:outline-level="1">Terms</text:h><text:h text:outline-level="2">Rent</text:h><text:h text:outline-level="2">Due</text:h>',
            styles='<office:styles><text:outline-style><text:outline-level-style text:level="1" style:num-format="1"/><text:outline-level-style text:level="2" style:num-format="1" text:display-levels="2"/></text:outline-style></office:styles>',
        ),
        ["1 Terms", "1.1 Rent", "1.2 Due"],
        [],
        [],
    ),
    Report(
        "deep-list",
        "a.odt",
        odf(
            "".join("<text:list><text:list-item>" for _ in range(600))
            + paragraph("Deep words")
            + "</text:list-item></text:list>" * 600
        ),
        ["Deep words"],
        [],
        [],
    ),
    Report(
        "deep-span",
        "a.odt",
        odf("<text:p>" + "<text:span>" * 1500 + "Deep words" + "</text:span>" * 1500 + "</text:p>"),
        ["Deep words"],
        [],
        [],
    ),
    Report(
        "deep-section",
        "a.odt",
        odf("<text:section>" * 1500 + paragraph("Deep words") + "</text:section>" * 1500),
        ["Deep words"],
        [],
        [],
    ),
    Report(
        "hidden-text",
        "a.odt",
        odf('<text:p>Seen <text:hidden-text text:string-value="x">secret</text:hidden-text></text:p>'),
        ["Seen"],
        [],
        [],
    ),
    Report(
        "value-only",
        "a.ods",
        odf(
            '<table:table table:name="R"><table:table-row><table:table-cell office:value-type="float" office:value="3.5"/><table:table-cell office:value-type="date" office:date-value="2024-01-02"/><table:table-cell office:value-type="string" office:string-value="Ada"/><table:table-cell office:value-type="boolean" office:boolean-value="true"/><table:table-cell office:value-type="percentage" office:value="0.25"/></table:table-row></table:table>',
            "spreadsheet",
        ),
        ["3.5 2024-01-02 Ada TRUE 25%"],
        [],
        [],
    ),
    Report(
        "repeat-bad",
        "a.ods",
        odf(
            '<table:table table:name="R"><table:table-row table:number-rows-repeated="x"><table:table-cell table:number-columns-repeated="-1">'
            + paragraph("v")
            + "</table:table-cell></table:table-row></table:table>",
            "spreadsheet",
        ),
        ["v"],
        [],
        [],
    ),
    Report("s-bad", "a.odt", odf('<text:p>a<text:s text:c="x"/>b</text:p>'), ["a b"], [], []),
    Report(
        "rows-huge",
        "a.ods",
        odf(
            '<table:table table:name="R"><table:table-row table:number-rows-repeated="1048576"><table:table-cell table:number-columns-repeated="16384"/></table:table-row><table:table-row><table:table-cell>'
            + paragraph("v")
            + "</table:table-cell></table:table-row></table:table>",
            "spreadsheet",
        ),
        ["v"],
        [],
        [],
    ),
    Report(
        "control",
        "a.odt",
        odf(
            '<office:forms><form:form><form:text form:id="c1" xml:id="c1" form:label="Name" form:current-value="Ida Roth"/><form:checkbox form:id="c2" form:label="Paid" form:current-state="checked"/></form:form></office:forms><text:p>Name: <draw:control draw:control="c1"/><draw:control draw:control="c2"/></text:p>'
        ),
        ["Ida Roth", "Paid"],
        [],
        [],
    ),
    Report(
        "embedded-odt",
        "a.odt",
        odf(
            '<text:p>Before<draw:frame><draw:object xlink:href="./Object 1"/></draw:frame></text:p>',
            parts={
                "Object 1/content.xml": f'<office:document-content {NS}><office:body><office:spreadsheet><table:table table:name="In"><table:table-row><table:table-cell>{paragraph("inner cell")}</table:table-cell></table:table-row></table:table></office:spreadsheet></office:body></office:document-content>'
            },
        ),
        ["inner cell"],
        [],
        [],
    ),
    Report(
        "embedded-chart",
        "a.odt",
        odf(
            '<text:p>Before<draw:frame><draw:object xlink:href="./Object 1"/></draw:frame></text:p>',
            parts={
                "Object 1/content.xml": f'<office:document-content {NS}><office:body><office:chart><chart:chart><chart:title>{paragraph("Rent by year")}</chart:title><table:table table:name="local-table"><table:table-row><table:table-cell>{paragraph("2023")}</table:table-cell><table:table-cell>{paragraph("300")}</table:table-cell></table:table-row></table:table></chart:chart></office:chart></office:body></office:document-content>'
            },
        ),
        ["Rent by year", "2023 300"],
        [],
        [],
    ),
    Report(
        "embedded-ole",
        "a.odt",
        odf(
            '<text:p>Before<draw:frame><draw:object-ole xlink:href="./Object 1"/></draw:frame></text:p>',
            parts={"Object 1": files.word(("Normal", "Inner words"))},
        ),
        ["Inner words"],
        [],
        [],
    ),
    Report(
        "flat",
        "a.fodt",
        f'<?xml version="1.0"?><office:document {NS} office:mimetype="application/vnd.oasis.opendocument.text"><office:body><office:text>{paragraph("Flat words")}</office:text></office:body></office:document>'.encode(),
        ["Flat words"],
        ["office:"],
        [],
    ),
    Report(
        "mimetype-newline",
        "a.odt",
        odf(paragraph("Words"), mimetype="application/vnd.oasis.opendocument.text\n"),
        ["Words"],
        [],
        [],
    ),
    Report(
        "no-mimetype",
        "a.odt",
        zipped(
            {
                "content.xml": f"<office:document-content {NS}><office:body><office:text>{paragraph('Words')}</office:text></office:body></office:document-content>",
                "META-INF/manifest.xml": "<m>application/vnd.oasis.opendocument.text</m>",
            }
        ),
        ["Words"],
        [],
        [],
    ),
    Report(
        "odg",
        "a.odg",
        odf(
            f"<draw:page><draw:custom-shape>{paragraph('Shape words')}</draw:custom-shape></draw:page>",
            "drawing",
            mimetype="application/vnd.oasis.opendocument.graphics",
        ),
        ["Shape words"],
        [],
        [],
    ),
    Report(
        "case-content",
        "a.odt",
        zipped(
            {
                "mimetype": "application/vnd.oasis.opendocument.text",
                "Content.xml": f"<office:document-content {NS}><office:body><office:text>{paragraph('Words')}</office:text></office:body></office:document-content>",
            }
        ),
        ["Words"],
        [],
        [],
    ),
    Report(
        "styles-bad", "a.odt", odf(paragraph("Words"), parts={"styles.xml": "<broken"}), ["Words"], [], ["styles.xml"]
    ),
    Report(
        "tracked",
        "a.odt",
        odf(
            f"<text:tracked-changes><text:changed-region><text:deletion>{paragraph('old')}</text:deletion></text:changed-region></text:tracked-changes>"
            + paragraph("new")
        ),
        ["new"],
        ["old"],
        ["tracked"],
    ),
    Report(
        "shape-textbox",
        "a.odt",
        odf(f"<text:p>x<draw:custom-shape>{paragraph('Shape words')}</draw:custom-shape></text:p>"),
        ["Shape words"],
        ["xShape"],
        [],
    ),
    Report(
        "group",
        "a.odp",
        odf(
            f"<draw:page><draw:g><draw:frame><draw:text-box>{paragraph('In group')}</draw:text-box></draw:frame></draw:g></draw:page>",
            "presentation",
        ),
        ["In group"],
        [],
        [],
    ),
    Report(
        "toc",
        "a.odt",
        odf(
            f"<text:table-of-content><text:index-body>{paragraph('Terms 3')}</text:index-body></text:table-of-content>"
        ),
        ["Terms 3"],
        [],
        [],
    ),
    Report(
        "conditional",
        "a.odt",
        odf(
            "<text:p>A<text:conditional-text>B</text:conditional-text><text:placeholder>C</text:placeholder><text:bookmark-ref>D</text:bookmark-ref></text:p>"
        ),
        ["ABCD"],
        [],
        [],
    ),
    Report(
        "hidden-sheet",
        "a.ods",
        odf(
            f'<table:table table:name="R" table:style-name="ta1"><table:table-row><table:table-cell>{paragraph("v")}</table:table-cell></table:table-row></table:table>',
            "spreadsheet",
            auto='<style:style style:name="ta1" style:family="table"><style:table-properties table:display="false"/></style:style>',
        ),
        ["v"],
        [],
        [],
    ),
    Report(
        "ods-shape",
        "a.ods",
        odf(
            f'<table:table table:name="R"><table:shapes><draw:frame><draw:text-box>{paragraph("Box words")}</draw:text-box></draw:frame></table:shapes><table:table-row><table:table-cell>{paragraph("v")}</table:table-cell></table:table-row></table:table>',
            "spreadsheet",
        ),
        ["Box words"],
        [],
        [],
    ),
    Report("soft-hyphen", "a.odt", odf(paragraph("hy\u00adphen")), ["hyphen"], [], []),
]
