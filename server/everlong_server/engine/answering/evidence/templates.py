"""`Template`: how passages and a question become one text, and the templates of the models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from everlong_models import Model
from everlong_server.engine.answering.turn_context import Exchange
from everlong_server.store.search.overview import Overview

REFUSAL = "The text does not say."
"""The answer to a question whose answer is not in the text."""
_REPEATED = 300
"""Characters of the previous question and of its answer that are repeated below the passages, at most."""
_SHOWN = 800
"""Characters of them that are shown as messages, at most."""


@dataclass(frozen=True, slots=True)
class Template:
    """How passages and a question become one text: `opening`, passages with `separator` between them, `closing`, question.

    If the text has nothing about the question: `nothing` and the question. `gap`: between sentences of one paragraph; None: the
    template is for whole passages. `tokens`: maximum number of tokens of the text, unless a setting or a request gives another.
    `in_order`: the passages have the order of the text; otherwise the best one is last.
    """

    opening: str
    separator: str
    closing: str
    nothing: str = (
        f"The text above does not hold the answer to the following question. Answer only: “{REFUSAL}”\n\nQuestion: "
    )
    gap: str | None = None
    tokens: int = 1000
    in_order: bool = False

    def render(self, passages: Sequence[str]) -> str:
        """Return the text that goes before the question; "" without passages."""
        if not passages:
            return ""
        return self.opening + self.separator.join(passage.strip() for passage in passages) + self.closing


TEMPLATE = Template("Answer the question from these passages of the text.\n\n", "\n\n", "\n\nQuestion: ")
"""The template `few-words`. docs/research/results.md compares it with others."""


INSTRUCT = Template(
    "Answer the question in a short sentence, from these passages of the text. If they do not tell, say that the text does not "
    "say.\n\n",
    "\n\n",
    "\n\nQuestion: ",
    gap=" … ",
    tokens=800,
)
"""The template `instruct`, for instruct models. The instruction to decline comes first: with one after the passages,
Qwen2.5-Coder 0.5B in bfloat16 declined 6 of 8 questions that the passages answered (12 questions, too few to compare templates)."""

WITH_TOOLS = Template("Passages of the text:\n\n", "\n\n", "\n\n", nothing="", gap=" … ")
"""The template for requests with tools or results of tools: it tells the model neither to answer at once nor to decline."""


def template_of(model: Model) -> Template:
    """Return the template that the model names."""
    return {"instruct": INSTRUCT, "few-words": TEMPLATE}[model.template]


def whole_template(overview: Overview) -> Template:
    """Return the template for a question about whole texts: their titles and most frequent names frame passages of all their parts."""
    title = " and ".join(f"“{title}”" for title in overview.titles)
    names = f"The names mentioned most often: {', '.join(overview.names)}.\n\n" if overview.names else ""
    return Template(
        f"These passages are from all parts of the text {title}".rstrip() + ".\n\n",
        "\n\n",
        f"\n\n{names}Answer the question about the whole text {title}".rstrip()
        + " in one to three sentences.\n\nQuestion: ",
        tokens=INSTRUCT.tokens,
        in_order=True,
    )


def shortened(previous: Exchange) -> Exchange:
    """Return an exchange of which only the beginning and the end remain where it is long."""
    half = _SHOWN // 2
    return Exchange(*(text if len(text) <= _SHOWN else f"{text[:half]} … {text[-half:]}" for text in previous))


def follow_up_template(template: Template, previous: Exchange) -> Template:
    """Return the template for a question that refers to the one before it. It repeats `previous` below the passages."""
    asked, answered = (" ".join(text.split()) for text in previous)
    repeated = f"{asked[-_REPEATED:]}\nAnswer: {answered[:_REPEATED]}\nQuestion: "
    return replace(template, closing=template.closing + repeated)
