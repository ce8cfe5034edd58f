"""List the characters of a text as JSON, with OpenAI's SDK: python characters.py FILE

The answer always matches the schema. A small model gets the form right, but often not the facts.
"""

import os
import sys
from pathlib import Path

from openai import OpenAI

SCHEMA = {
    "type": "object",
    "properties": {
        "characters": {
            "type": "array",
            "minItems": 1,
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 20}, "animal": {"type": "boolean"}},
                "required": ["name", "animal"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["characters"],
    "additionalProperties": False,
}


def main(path: Path) -> None:
    url = os.environ.get("EVERLONG_URL", "http://127.0.0.1:8080")
    client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("EVERLONG_API_KEY", "none"))
    file = client.files.create(file=path, purpose="user_data")
    client.files.wait_for_processing(file.id, poll_interval=0.5)
    response = client.responses.create(
        model=client.models.list().data[0].id,
        input=[
            {
                "role": "user",
                "content": [
                    {"type": "input_file", "file_id": file.id},
                    {
                        "type": "input_text",
                        "text": "Who is in this text? Answer in JSON: name, and whether it is an animal.",
                    },
                ],
            }
        ],
        text={"format": {"type": "json_schema", "name": "characters", "schema": SCHEMA, "strict": True}},
        max_output_tokens=400,
    )
    print(response.output_text)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
