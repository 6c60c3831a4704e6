# /// script
# requires-python = ">=3.11"
# dependencies = ["lm-eval[api]==0.4.13"]
# ///
"""Runs a multiple-choice task of lm-eval against a live server and prints what it found as JSON.

uv run lm_eval_likelihood.py http://127.0.0.1:8000 MODEL items.json
"""

import json
import sys
import tempfile
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager

url, model, items = sys.argv[1], sys.argv[2], json.loads(Path(sys.argv[3]).read_text())

with tempfile.TemporaryDirectory() as folder:
    data = Path(folder) / "items.jsonl"
    data.write_text("".join(json.dumps(item) + "\n" for item in items))
    task = {
        "task": "endings",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{begin}}",
        "doc_to_choice": "{{ends}}",
        "doc_to_target": 0,
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    }
    results = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={"base_url": f"{url}/v1/completions", "model": model, "num_concurrent": 4},
        tasks=[task],
        # The index of its own tasks, thousands of files, takes ten seconds and is not needed.
        task_manager=TaskManager(include_defaults=False),
        bootstrap_iters=0,
    )

samples = sorted(results["samples"]["endings"], key=lambda sample: sample["doc_id"])
print(
    json.dumps(
        {
            "accuracy": results["results"]["endings"]["acc,none"],
            "likelihoods": [[float(r[0][0]) for r in s["resps"]] for s in samples],
            "greedy": [[bool(r[0][1]) for r in s["resps"]] for s in samples],
        }
    )
)
