"""Complex fields in Word files: which marks belong together, which fields are links, and the controls of forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from everlong_server.engine.documents.formats.readers.openxml.package import W
from everlong_server.engine.documents.formats.readers.openxml.styles import is_on
from everlong_server.engine.documents.formats.readers.shared.addresses import field_address
from everlong_server.engine.documents.formats.readers.shared.marks import LINK_END, link_begin

_MARK, _KIND = f"{W}fldChar", f"{W}fldCharType"
_STORIES = tuple(W + name for name in ("txbxContent", "footnote", "endnote", "comment"))
"""Elements with a text of their own: a field does not end outside of the one that it begins in."""


@dataclass(slots=True)
class _Field:
    instruction: str = ""
    has_result: bool = False
    is_link: bool = False


class Fields:
    """The fields that have begun, the innermost last."""

    def __init__(self) -> None:
        self._open: list[_Field] = []

    def begin(self) -> None:
        """Begin a field, with its instruction."""
        self._open.append(_Field())

    def instruct(self, text: str) -> None:
        """Add a part of the instruction."""
        if self._open and not self._open[-1].has_result:
            self._open[-1].instruction += text

    def separate(self) -> str:
        """Begin the saved result of the innermost field; return the mark of a link if the field is one."""
        if not self._open:
            return ""
        field = self._open[-1]
        field.has_result = True
        address = "" if self.is_nested_in_instruction else field_address(field.instruction)
        field.is_link = bool(address)
        return link_begin(address)

    def end(self) -> tuple[str, str]:
        """End the innermost field; return the mark of the end of a link, and the instruction of a field without a result."""
        if not self._open:
            return "", ""
        field = self._open.pop()
        return LINK_END if field.is_link else "", "" if field.has_result else field.instruction

    @property
    def is_nested_in_instruction(self) -> bool:
        """Whether the innermost field is inside the instruction of another, such as the condition of an IF field."""
        return any(not field.has_result for field in self._open[:-1])

    @property
    def collects_instruction(self) -> bool:
        """Whether what follows belongs to the instruction of a field."""
        return any(not field.has_result for field in self._open)


def paired_marks(tree: Any, is_skipped: Callable[[Any], bool]) -> set[Any]:
    """Return the marks of the fields in `tree` that have both a beginning and an end.

    `is_skipped`: tells elements that are not read, such as deletions. Their marks have no partners.
    """
    paired = set[Any]()
    open_fields: dict[Any, list[list[Any]]] = {}
    """The marks so far of each field that has begun, the innermost last, by the element with the text."""
    for mark in tree.iter(_MARK):
        outer = list(mark.iterancestors())
        if any(map(is_skipped, outer)):
            continue
        story = next((element for element in outer if element.tag in _STORIES), tree)
        fields = open_fields.setdefault(story, [])
        kind = mark.get(_KIND)
        if kind == "begin":
            fields.append([mark])
        elif fields:
            fields[-1].append(mark)
            if kind == "end":
                paired.update(fields.pop())
    return paired


def legacy_control(data: Any) -> str:
    """Return the state of a check box or a list of the forms of Word 97 to 2003. The text of their fields is in the paragraph."""
    box = data.find(f"{W}checkBox")
    if box is not None:
        state = box.find(f"{W}checked")
        state = box.find(f"{W}default") if state is None else state
        return "[x]" if is_on(state) else "[ ]"
    options = data.findall(f"{W}ddList/{W}listEntry")
    chosen = data.find(f"{W}ddList/{W}result")
    index = chosen.get(f"{W}val", "0") if chosen is not None else "0"
    return options[int(index)].get(f"{W}val", "") if index.isdecimal() and int(index) < len(options) else ""
