"""The descriptions of the lab's commands in `everlong --help`.

The entry point group `everlong.summaries` names `SUMMARIES`. This module must import nothing heavy, because
`everlong --help` imports it.
"""

SUMMARIES = {
    "bench": "Measure speed and memory, and compare them with the targets.",
    "train": "Train a memory as a recipe describes.",
    "train-reranker": "Train the reranker, which chooses the sentences that instruct models are shown.",
    "train-probe": "Train the probe that predicts whether passages hold the answer to a question.",
    "prompts": "Write prompts with questions about texts, as training data for `everlong train`.",
    "sentences": "Rewrite the short answers of training prompts as sentences.",
    "eval": "Measure the quality of models and their answers.",
}
