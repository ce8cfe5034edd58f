"""Visio drawings are read page by page. Of Apple Pages, Numbers and Keynote, only the preview is read, and the notes say so."""

from __future__ import annotations

import pytest

from everlong_server.engine.documents.formats.blocks import Unreadable
from tests import files
from tests.server.engine.documents.formats.reading import notes_of, read, text_of

VISIO = 'xmlns="http://schemas.microsoft.com/office/visio/2012/main"'


def test_the_text_of_a_page_follows_its_name() -> None:
    assert text_of(files.visio("Check the <cp IX='0'/>invoice"), "a.vsdx") == "Plan\n\nCheck the invoice"


def test_shapes_have_the_text_of_their_master_and_their_data() -> None:
    data = "<Section N='Property'><Row N='Cost'><Cell N='Label' V='Cost in crowns'/><Cell N='Value' V='300'/></Row></Section>"
    shapes = (
        "<Shape ID='1' Master='2'/><Shape ID='2' Master='2'><Text>Paid?</Text></Shape>"
        f"<Shape ID='3' Type='Group'><Shapes><Shape ID='4'>{data}<Text>Inside</Text></Shape></Shapes></Shape>"
    )
    parts = {
        "pages/page1.xml": f"<PageContents {VISIO}><Shapes>{shapes}</Shapes></PageContents>",
        "comments.xml": f"<Comments {VISIO}><CommentList><CommentEntry PageID='7'>Why?</CommentEntry></CommentList></Comments>",
    }
    assert text_of(files.visio("", parts)).split("\n\n") == [
        "Plan", "Decision", "Paid?", "Inside", "Cost in crowns: 300", "[Comment] Why?",
    ]  # fmt: skip


IWORK = {"Index/Document.iwa": b"\0\1", "Metadata/Properties.plist": b"bplist00", "preview.jpg": b"\xff\xd8\xff\xe0"}


@pytest.mark.parametrize("folder", ["", "Plan.pages/"])
def test_the_preview_of_a_pages_file_is_read_and_noted(folder: str) -> None:
    entries = {
        folder + name: data for name, data in (IWORK | {"QuickLook/Preview.pdf": files.pdf(["The plan."])}).items()
    }
    data = files.zipped(entries)
    assert text_of(data, "a.pages") == "The plan."
    assert notes_of(data) == [
        "only the preview that the program stored in the file was read; it may be older or have fewer pages"
    ]


def test_a_pages_file_without_a_preview_is_refused_with_advice() -> None:
    with pytest.raises(
        Unreadable, match="Apple Pages, Numbers or Keynote: export it as PDF, Word, Excel or PowerPoint"
    ):
        read(files.zipped(IWORK), "a.pages")
