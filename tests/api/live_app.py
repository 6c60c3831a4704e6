"""A server process for tests: the real application and engine, a backend that makes tokens up.

python -m tests.api.live_app --port 8000
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import uvicorn

from rocmforge.api.app import build_app
from rocmforge.api.http.keys import Keyring, given_keys
from rocmforge.api.http.settings import ApiSettings
from rocmforge.api.metrics.fleet import FleetMetrics
from rocmforge.commands.http.server import http_config, listen
from rocmforge.engine.client.client import AsyncEngine
from rocmforge.engine.client.config import EngineConfig
from rocmforge.engine_options import token_pieces
from rocmforge.fleet.entry import FleetEntry
from rocmforge.fleet.fleet import Fleet
from rocmforge.fleet.model import ServedModel
from rocmforge.gguf.tokenizer import read_templates, read_tokenizer
from rocmforge.sensors.watch import DeviceWatch
from rocmforge.text.template.template import ChatTemplates
from rocmforge.text.tokenizer.token_sets import TokenSets
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from tests.api import tiny
from tests.support.models.any_model import any_model
from tests.support.models.options import SMALL


async def serve(arguments: argparse.Namespace) -> None:
    """Serves until SIGTERM."""
    data = tiny.thinking_metadata() if arguments.thinks else tiny.metadata()
    tokenizer = Tokenizer(read_tokenizer(data))
    config = EngineConfig(
        backend=f"tests.support.fakes.fake_backend:{arguments.backend}",
        model=any_model(),
        options=replace(
            SMALL,
            max_context=arguments.max_context,
            max_sequences=arguments.max_sequences,
            max_batched_tokens=2048,
            kv_blocks=None,
        ),
        vocabulary=token_pieces(tokenizer),
        draft=any_model("draft") if arguments.draft_tokens else None,
        max_waiting=arguments.max_waiting,
        resume=arguments.resume,
    )
    watch = DeviceWatch(arguments.root, interval_s=0.2, pid=os.getpid())
    entry = FleetEntry("tiny", lambda totals: AsyncEngine(config, totals, watch=watch))
    model = ServedModel(
        name="tiny",
        entry=entry,
        tokenizer=tokenizer,
        token_sets=TokenSets(tokenizer),
        templates=ChatTemplates.compile(read_templates(data), tokenizer),
        declared_context=config.options.max_context,
        prompt_lookup_tokens=arguments.prompt_lookup_tokens,
        draft_model_tokens=arguments.draft_tokens,
    )
    keys = Keyring(given_keys(arguments.api_key))
    limits = ApiSettings(vllm_metrics=True, receive_timeout_s=arguments.receive_timeout)
    fleet = Fleet([model], watch=watch)
    app = build_app(fleet, limits, keys, metrics=FleetMetrics(fleet))
    loading = asyncio.create_task(fleet.load_first(entry))
    try:
        http = http_config(app, receive_timeout_s=arguments.receive_timeout)
        await uvicorn.Server(http).serve([listen(arguments.host, arguments.port)])
    finally:
        await fleet.stop()
        await asyncio.gather(loading, return_exceptions=True)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--backend", default="create_pipelined", help="of tests.support")
    parser.add_argument("--api-key", action="append", default=[])
    parser.add_argument("--receive-timeout", type=float, default=30.0)
    parser.add_argument("--max-context", type=int, default=32768)
    parser.add_argument("--max-sequences", type=int, default=64)
    parser.add_argument("--prompt-lookup-tokens", type=int, default=0)
    parser.add_argument("--draft-tokens", type=int, default=0)
    parser.add_argument("--max-waiting", type=int, default=256)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--thinks", action="store_true", help="have a model that reasons")
    parser.add_argument("--root", type=Path, default=Path("/"), help="with sensors of devices")
    # The server acts on it, and raises it once more when it is done.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
