# /// script
# requires-python = ">=3.11"
# dependencies = ["guidellm==0.3.1", "datasets==5.0.1", "transformers==5.17.0"]
# ///
"""Puts a live server under guidellm's load and prints what its report says as JSON.

uv run guidellm_load.py http://127.0.0.1:8000 STREAMS lengths.json

The file lists how many tokens each request must get, whatever the model says: guidellm sends
`ignore_eos`. Later versions of it need torch.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

url, streams, lengths = sys.argv[1], sys.argv[2], json.loads(Path(sys.argv[3]).read_text())
routes = {"text": "text_completions", "chat": "chat_completions"}
found = {}
# Its ten workers would ask for work without end.
environment = os.environ | {"GUIDELLM__MAX_WORKER_PROCESSES": "2", "HF_HUB_OFFLINE": "1"}

with tempfile.TemporaryDirectory() as folder:
    data, report = Path(folder) / "data.jsonl", Path(folder) / "report.json"
    rows = [
        {"prompt": f"hello world {number}", "output_tokens_count": length}
        for number, length in enumerate(lengths)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = {"prompt_column": "prompt", "output_tokens_count_column": "output_tokens_count"}
    for name, route in routes.items():
        subprocess.run(
            [
                *(sys.executable, "-m", "guidellm", "benchmark", "run", "--target", url),
                *("--rate-type", "concurrent", "--rate", streams),
                *("--max-requests", str(len(rows)), "--data", str(data)),
                *("--data-args", json.dumps(columns), "--output-path", str(report)),
                *("--disable-progress", "--disable-console-outputs"),
            ],
            env=environment | {"GUIDELLM__PREFERRED_ROUTE": route},
            stdout=sys.stderr,
            check=True,
        )
        (benchmark,) = json.loads(report.read_text())["benchmarks"]
        requests = benchmark["requests"]
        found[name] = {
            "made": benchmark["run_stats"]["requests_made"],
            "answers": {
                int(answer["prompt"].split()[-1]): [
                    answer["prompt_tokens"],
                    answer["output_tokens"],
                ]
                for answer in requests["successful"]
            },
        }

print(json.dumps(found))
