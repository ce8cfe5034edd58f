"""Answer many questions about one file, as JSON lines: python questions.py FILE < questions.txt > answers.jsonl

The server reads the file once. Each question gets a session of its own, which starts from the document's state.
"""

import asyncio
import json
import os
import sys
from dataclasses import asdict

from everlong_client import AsyncEverlong

CONCURRENT = 8


async def main(path: str, questions: list[str]) -> None:
    url, key = os.environ.get("EVERLONG_URL", "http://127.0.0.1:8080"), os.environ.get("EVERLONG_API_KEY")
    async with AsyncEverlong(url, api_key=key) as client:
        document = await client.documents.upload(path)
        await client.documents.wait(document.id)
        slots = asyncio.Semaphore(CONCURRENT)

        async def answer(question: str) -> None:
            async with slots:
                session = await client.sessions.create([document.id])
                message = await client.sessions.send(session.id, question, temperature=0)
                await client.sessions.delete(session.id)
            answered = {
                "question": question,
                "answer": message.content,
                "evidence": [asdict(e) for e in message.evidence],
            }
            print(json.dumps(answered, ensure_ascii=False), flush=True)

        await asyncio.gather(*map(answer, questions))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    asyncio.run(main(sys.argv[1], [line.strip() for line in sys.stdin if line.strip()]))
