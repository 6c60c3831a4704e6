"""`rocmforge serve`: the HTTP server around its models, from start to drained end."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from rocmforge.api.http.hosts import is_loopback
from rocmforge.api.http.keys import Keyring
from rocmforge.commands.http.server import Certificate, HttpServer, http_config, listen
from rocmforge.commands.obtain import obtained
from rocmforge.commands.terminal.progress import wait_for
from rocmforge.errors import ConfigurationError, EngineError, RocmForgeError
from rocmforge.fleet.entry import FleetEntry
from rocmforge.fleet.fleet import Fleet
from rocmforge.fleet.model import ServedModel
from rocmforge.logs import LogFormat
from rocmforge.served_models import served_models
from rocmforge.settings import Settings
from rocmforge.wiring import (
    build_fleet,
    build_web_app,
    read_all_keys,
)

logger = logging.getLogger(__name__)

_ALL: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that stand for all of a machine, which no browser opens; and what it does."""


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Serves until SIGTERM or SIGINT; finishes what runs, then returns 0."""
    _check_exposure(settings)
    _check_tls(settings)
    keys = Keyring(read_all_keys(settings))
    # Reads the files. It may take seconds, in which a running loop would not hear of ^C.
    models = served_models(arguments.models, settings)
    fleet = build_fleet([obtained(model) for model in models], settings)
    return asyncio.run(_serve(fleet, keys, settings))


def _check_exposure(settings: Settings) -> None:
    """Refuses an address that others reach without a key, unless it is asked for by name."""
    if settings.api_key or settings.keys_file or settings.insecure or is_loopback(settings.host):
        return
    raise ConfigurationError(
        f"Listening on {settings.host} without a key would let anyone who can reach it use this "
        "server. Give it a key with --api-key or --keys-file, or say --insecure if that is what "
        "you want."
    )


def _check_tls(settings: Settings) -> None:
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise ConfigurationError("--tls-certificate and --tls-key need each other: give both.")


async def _serve(fleet: Fleet, keys: Keyring, settings: Settings) -> int:
    console = Console(stderr=True)
    # Before anything is loaded: a taken port should not cost a minute to find out.
    listener = listen(settings.host, settings.port)
    config = http_config(
        build_web_app(fleet, settings, keys),
        receive_timeout_s=settings.receive_timeout,
        tls_certificate=settings.tls_certificate,
        tls_key=settings.tls_key,
    )
    server = HttpServer(config)
    stop = _stop_on_signals()
    if settings.keys_file or settings.tls_certificate:  # else SIGHUP means a closed terminal
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGHUP, _reload, settings, keys, Certificate(config)
        )
    serving = asyncio.create_task(server.serve([listener]), name="http")
    loading = asyncio.create_task(_load(fleet, console, settings.log_format), name="load")
    try:
        await _first_of(serving, loading, stop.wanted)
        if loading.done():
            await loading  # raises what is wrong with a model
            _announce(console, fleet, listener, settings)
            await _first_of(serving, stop.wanted)
        if serving.done():
            await serving
            raise EngineError("The HTTP server ended by itself.")
        await _drain(fleet, settings.drain_timeout, stop.now)
        return 0
    finally:
        await fleet.stop()
        server.should_exit = True
        await asyncio.gather(serving, loading, return_exceptions=True)


async def _load(fleet: Fleet, console: Console, log_format: LogFormat) -> None:
    """Loads the models of the start, one after the other; raises what is wrong with one."""
    for model in fleet.models:
        if model.entry.is_new:
            await _load_one(fleet, model.entry, console, log_format)
    # What is there now stays. To go through it takes 40 to 60 ms, in which all streams would wait.
    gc.collect()
    gc.freeze()


async def _load_one(
    fleet: Fleet, entry: FleetEntry, console: Console, log_format: LogFormat
) -> None:
    try:
        await wait_for(fleet.load_first(entry), lambda: entry.status, console, log_format)
    except RocmForgeError as error:
        if len(fleet.models) > 1:
            error.message = f"{entry.name} could not be loaded: {error.message}"
        raise


def _reload(settings: Settings, keys: Keyring, certificate: Certificate) -> None:
    """Reads keys and certificate again, on SIGHUP. Errors are logged, and the old ones stay."""
    try:
        read, context = read_all_keys(settings), certificate.read()
    except ConfigurationError as error:
        logger.error("nothing was reloaded: %s", error)
    else:
        keys.replace(read)
        certificate.use(context)
        logger.info("keys and certificate were read again")


@dataclass(frozen=True, slots=True)
class _Stop:
    """Set by signals: the first asks for a drained end, a second one for an end at once."""

    wanted: asyncio.Event
    now: asyncio.Event

    def on_signal(self) -> None:
        (self.now if self.wanted.is_set() else self.wanted).set()


def _stop_on_signals() -> _Stop:
    stop = _Stop(asyncio.Event(), asyncio.Event())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.on_signal)
    return stop


async def _first_of(*awaited: asyncio.Task[None] | asyncio.Event) -> None:
    """Waits until one of the tasks is done or one of the events is set."""
    waiters = [
        asyncio.ensure_future(one.wait()) if isinstance(one, asyncio.Event) else one
        for one in awaited
    ]
    await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
    for waiter, one in zip(waiters, awaited, strict=True):
        if isinstance(one, asyncio.Event):
            waiter.cancel()


async def _drain(fleet: Fleet, timeout_s: float, now: asyncio.Event) -> None:
    logger.info(
        "shutting down: running requests get up to %g s to finish; "
        "a second signal stops them at once",
        timeout_s,
    )
    draining = asyncio.create_task(fleet.drain(timeout_s))
    hurry = asyncio.create_task(now.wait())
    await asyncio.wait((draining, hurry), return_when=asyncio.FIRST_COMPLETED)
    if not (draining.done() and draining.result()):
        logger.warning("requests that were still running got an error")
    for task in (draining, hurry):
        task.cancel()


def _announce(console: Console, fleet: Fleet, listener: socket.socket, settings: Settings) -> None:
    """Says where the server is and what it serves."""
    host, port = listener.getsockname()[:2]
    scheme = "https" if settings.tls_certificate else "http"
    address = escape(f"{scheme}://{_reached_as(host)}:{port}")
    lines = [line for model in fleet.models for line in _about_model(model)]
    if not settings.no_page:
        lines.append((logging.INFO, f"{address} is a page to chat on"))
    lines += [
        (logging.INFO, f"{address}/docs describes the API"),
        (logging.INFO, f"{address}/v1"),
    ]
    if host in _ALL:
        lines.append((logging.INFO, f"Other machines use the name of this one, and port {port}"))
    for level, line in lines:
        if settings.log_format == "json":  # for programs that read nothing else
            logger.log(level, "%s", Text.from_markup(line).plain)
        else:
            console.print(line, highlight=False, soft_wrap=True)


def _reached_as(host: str) -> str:
    """Returns where a browser on this machine finds a server that listens there."""
    reached = _ALL.get(host, host)
    return f"[{reached}]" if ":" in reached else reached


def _about_model(model: ServedModel) -> Iterator[tuple[int, str]]:
    """Describes what a model runs on, as levels and markup; says loudly that no GPU is used."""
    name, status = escape(model.name), model.entry.status
    runner = status.runner
    if runner is None:
        yield logging.INFO, f"[bold]{name}[/] is loaded when a request names it"
        return
    if status.is_fallback:
        yield (
            logging.WARNING,
            "[bold yellow]No GPU is used.[/] The reference backend serves on the CPU, slowly. "
            f"Reason: {escape(status.fallback_reason)}",
        )
    yield from ((logging.INFO, escape(note)) for note in runner.notes)
    room = f"{runner.num_blocks * runner.block_size} tokens"
    if runner.window_groups:  # a token takes a place in each group that sees it
        room = f"{runner.num_blocks} blocks"
    cache = f"KV cache {room} in {runner.kv_dtype}"
    yield (
        logging.INFO,
        f"[bold]{name}[/] on {runner.backend} ({escape(runner.device.name)}), "
        f"context {runner.max_context}, {cache if runner.causal else 'no KV cache'}",
    )
