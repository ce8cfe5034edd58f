"""`python -m tests.compat.tool_questions MODEL`: how often a served model chooses the right tool and fills it in right.

Asks twelve questions with four tools each, one answer to each question, at temperature 0, without a forced choice. Two questions need
no tool. Prints every call and the counts. The questions were written before any model was asked.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from openai import OpenAI

from tests.process import Server


def _tool(name: str, description: str, **properties: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {field: {"type": kind} for field, kind in properties.items()},
        "required": list(properties),
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    _tool("get_weather", "Tells the current weather in a city.", city="string"),
    _tool("convert_currency", "Converts an amount of money.", amount="number", source="string", target="string"),
    _tool("set_timer", "Sets a timer.", minutes="number"),
    _tool("send_message", "Sends a text message to a person.", recipient="string", text="string"),
]


class Question(NamedTuple):
    """A question, the tool that it needs (None: no tool) and arguments. A list: any of its values is right. `...`: any value."""

    text: str
    tool: str | None
    arguments: dict[str, Any]


_EURO, _DOLLAR, _YEN = ["EUR", "euro", "euros"], ["USD", "dollar", "dollars", "US dollars"], ["JPY", "yen"]
QUESTIONS = [
    Question("How is the weather in Lisbon?", "get_weather", {"city": "Lisbon"}),
    Question("Do I need an umbrella in Oslo right now?", "get_weather", {"city": "Oslo"}),
    Question("Is it colder in Toronto than usual today?", "get_weather", {"city": "Toronto"}),
    Question("How much is 250 euros in US dollars?", "convert_currency", {"amount": 250, "source": _EURO, "target": _DOLLAR}),
    Question("What are 10,000 yen worth in euros?", "convert_currency", {"amount": 10_000, "source": _YEN, "target": _EURO}),
    Question("Set a timer for 12 minutes.", "set_timer", {"minutes": 12}),
    Question("Remind me in an hour and a half.", "set_timer", {"minutes": 90}),
    Question("My pasta needs 8 minutes. Tell me when it is done.", "set_timer", {"minutes": 8}),
    Question("Text Maria that I am late.", "send_message", {"recipient": "Maria", "text": ...}),
    Question("Let my brother Tom know that the train leaves at nine.", "send_message", {"recipient": "Tom", "text": ...}),
    Question("How many legs does a spider have?", None, {}),
    Question("Write a sentence about the sea.", None, {}),
]  # fmt: skip


def _is_right(expected: object, given: object) -> bool:
    if expected is ...:
        return bool(given)
    if isinstance(expected, list):
        return any(_is_right(each, given) for each in expected)
    if isinstance(expected, str):
        return isinstance(given, str) and given.strip().lower() == expected.lower()
    return given == expected


def ask(client: OpenAI, model: str, question: Question) -> tuple[bool, bool, str]:
    """Ask the question. Returns whether the tool is right, whether the arguments are right too, and what the model did."""
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question.text}], tools=TOOLS, temperature=0, max_tokens=150,  # type: ignore[arg-type]
    )  # fmt: skip
    message = answer.choices[0].message
    if not message.tool_calls:
        return question.tool is None, question.tool is None, f"said {(message.content or '')[:60]!r}"
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls]  # type: ignore[union-attr]
    name, arguments = calls[0]
    chosen = len(calls) == 1 and name == question.tool
    filled = chosen and all(_is_right(value, arguments.get(field)) for field, value in question.arguments.items())
    return chosen, filled, f"called {json.dumps(calls)}"


def main(model: str) -> None:
    """Serve the model, ask all questions and print the counts."""
    with tempfile.TemporaryDirectory() as folder, Server(model, Path(folder)) as server:
        server.start()
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=600)
        name, chosen, filled = client.models.list().data[0].id, 0, 0
        for question in QUESTIONS:
            right_tool, right_arguments, did = ask(client, name, question)
            chosen, filled = chosen + right_tool, filled + right_arguments
            print("right" if right_arguments else "tool " if right_tool else "wrong", question.text, did, flush=True)
        print(f"{name}: right tool (or none) {chosen} of {len(QUESTIONS)}, right arguments too {filled}")


if __name__ == "__main__":
    main(sys.argv[1])
