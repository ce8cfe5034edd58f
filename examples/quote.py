"""Answer a question about a file, and show the passages it is based on: python quote.py FILE QUESTION"""

import os
import sys
from pathlib import Path

from everlong_client import Everlong, ResponseEvidence, TextDelta


def main(path: Path, question: str) -> None:
    with Everlong(
        os.environ.get("EVERLONG_URL", "http://127.0.0.1:8080"), api_key=os.environ.get("EVERLONG_API_KEY")
    ) as client:
        document = client.documents.wait(
            client.documents.upload(path).id,
            progress=lambda now: print(f"\r{now.tokens:,} tokens read", end="", file=sys.stderr),
        )
        print(file=sys.stderr)
        session = client.sessions.create([document.id])
        evidence = ()
        with client.sessions.stream(session.id, question) as stream:
            for event in stream:
                if isinstance(event, ResponseEvidence):  # arrives before the first text
                    evidence = event.evidence
                elif isinstance(event, TextDelta):
                    print(event.delta, end="", flush=True)
    print("\n")
    text = path.read_bytes()
    for passage in evidence:
        line = text[: passage.start_byte].count(b"\n") + 1  # offsets are exact, in bytes and in characters
        print(f"{path}:{line}: {' '.join(passage.text.split())}\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2])
