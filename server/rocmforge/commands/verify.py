"""`rocmforge verify`: is this device right? One report, to be pasted into an issue.

Each operation is compared with its definition, then a model, and its tower if it takes images, with
the reference backend. Exit
status 0 if rounding explains every difference, else 1.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rich.console import Console

from rocmforge import __version__
from rocmforge.backend import registry
from rocmforge.backend.optional import OpCheck, SelfChecking
from rocmforge.backend.protocol import Backend, LoadOptions, RunnerInfo
from rocmforge.commands.agreement import (
    MOST_PATCHES,
    Agreement,
    Continuation,
    TowerAgreement,
    compare,
    compare_shown,
    compare_towers,
    decode_speed,
)
from rocmforge.engine.ipc.prompt import EmbeddingSpan
from rocmforge.engine.loading import tower_options
from rocmforge.engine.proof.bundle import read_bundle
from rocmforge.engine.proof.replay import Replay, Replayed, by_depth, load_device, open_model
from rocmforge.errors import (
    ConfigurationError,
    EngineError,
    ModelFileNotFound,
    UnsupportedArchitecture,
    UnsupportedTensor,
)
from rocmforge.gguf.synthetic import write_synthetic_model
from rocmforge.library.finding import find_model
from rocmforge.models.checkpoint import Checkpoint
from rocmforge.opening import open_checkpoint
from rocmforge.settings import Settings
from rocmforge.text.tokenizer.tokenizer import Tokenizer

DEMO_MODEL: Final = "smollm2"
_TOKENS: Final = 32  # of each continuation, unless others are asked for
MAX_CONTEXT: Final = 256
TEXTS: Final = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea, there lived an old fisherman who",
    "def fibonacci(n):\n    ",
    "A GPU runs many threads at once. They are grouped into waves, and all threads of a wave "
    "execute the same instruction. When some of them take another branch,",
)


@dataclass(frozen=True, slots=True)
class _Model:
    """The model that is run, and its prompts."""

    checkpoint: Checkpoint
    title: str
    prompts: list[list[int]]
    context: int  # tokens that it is loaded for

    def check_length(self, tokens: int) -> None:
        """Raises ConfigurationError for answers that do not fit, with a token more to time them."""
        longest = max(map(len, self.prompts))
        most = self.context - longest - 1
        if not 1 <= tokens <= most:
            raise ConfigurationError(
                f"--tokens must be from 1 to {most}: of a context of {self.context} tokens, the "
                f"longest prompt takes {longest}."
            )


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Prints the report."""
    if arguments.ops_only and (arguments.model, arguments.tokens) != (None, None):
        raise ConfigurationError("--ops-only runs no model: leave MODEL and --tokens out.")
    if arguments.replay is not None:
        return _replay(arguments, settings)
    if arguments.layers:
        raise ConfigurationError("--layers needs --replay BUNDLE.")
    tokens = _TOKENS if arguments.tokens is None else arguments.tokens
    started = time.perf_counter()
    console = Console(stderr=True)
    backend = _choose(settings.backend)
    with ExitStack() as stack:
        model = None if arguments.ops_only else stack.enter_context(_find_model(arguments.model))
        if model is not None:
            model.check_length(tokens)
        print(f"ROCmForge {__version__} verification, backend {backend.name}")
        _show("python", f"{platform.python_version()}, {platform.machine()}")
        is_right = True
        if isinstance(backend, SelfChecking):
            is_right = _verify_devices(backend, settings, arguments.only, console)
        if is_right and model is not None:
            is_right = _verify_model(backend, model, settings, tokens, console)
    seconds = time.perf_counter() - started
    _show("result", f"{'PASSED' if is_right else 'FAILED'} after {seconds:.0f} s")
    return 0 if is_right else 1


def _replay(arguments: argparse.Namespace, settings: Settings) -> int:
    """Computes a bundle again; returns 1 if the device, or without one the recording, is wrong."""
    if arguments.ops_only or arguments.tokens is not None:
        raise ConfigurationError("--replay runs a bundle: leave --ops-only and --tokens out.")
    bundle = read_bundle(arguments.replay)
    print(f"ROCmForge {__version__} replay of {arguments.replay}")
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(bundle.time))
    runner = bundle.runner
    _show("alarm", f"{when}: {bundle.alarm}")
    _show("then", f"{bundle.version}, {runner.backend} on {runner.device.name}, {runner.kv_dtype}")
    path = None if arguments.model is None else find_model(arguments.model)
    with open_model(bundle, path) as checkpoint:
        if bundle.identity is not None and checkpoint.identify() != bundle.identity:
            _show("model", f"WARNING {checkpoint.path} has changed since, or is another file")
        replayed = Replay(bundle, checkpoint)
        results = [replayed.recorded()]
        _show_replayed(results[0])
        choice = registry.choose(settings.backend)
        if choice.backend.name == registry.REFERENCE:
            if arguments.layers:
                raise ConfigurationError("--layers needs a device besides the reference.")
            _show("device", f"none to replay on: {choice.reason}")
        else:
            load = load_device(bundle, choice.backend, settings.device)
            with closing(load(checkpoint)) as device:
                results = list(_shown(replayed.on(device)))
            if arguments.layers:
                results += _replay_layers(by_depth(bundle, checkpoint, load))
    return 0 if all(each.alarm is None for each in results) else 1


def _replay_layers(found: Iterable[tuple[int, Replayed]]) -> list[Replayed]:
    """Shows how far the device is away behind each layer, and the first layer that is wrong."""
    results, wrong = list[Replayed](), list[int]()
    for depth, result in found:
        _show_replayed(result)
        results.append(result)
        if result.alarm is not None:
            wrong.append(depth)
    if wrong:
        _show("first wrong layer", f"{min(wrong) - 1}, counted from 0")
    return results


def _shown(results: Iterable[Replayed]) -> Iterator[Replayed]:
    for each in results:
        _show_replayed(each)
        yield each


def _show_replayed(result: Replayed) -> None:
    _show(result.way, f"{'ok' if result.alarm is None else 'WRONG':<7}{result}")


def _choose(name: str) -> Backend:
    choice = registry.choose(name)
    if choice.is_fallback:
        raise ConfigurationError(f"There is no device to verify: {choice.reason}")
    if choice.backend.name == registry.REFERENCE:
        raise ConfigurationError(
            "The reference backend is what others are compared with; name another with --backend."
        )
    return choice.backend


def _show(label: str, text: str) -> None:
    print(f"{label:<29}{text}", flush=True)


def _verify_devices(backend: SelfChecking, settings: Settings, only: str, console: Console) -> bool:
    """Verifies each device that the model will be loaded onto."""
    devices = backend.devices(settings.device, settings.tensor_parallel)
    are_right = [_verify_ops(backend, device, only, console) for device in devices]
    return all(are_right)


def _verify_ops(backend: SelfChecking, device: str, only: str, console: Console) -> bool:
    for label, text in backend.describe(device):
        _show(label, text)
    checks: list[OpCheck] = []
    with console.status("checking operations") as status:
        for check in backend.check_ops(device, only):
            checks.append(check)
            status.update(f"checking operations: {check.op} {check.case}")
    if not checks:
        raise ConfigurationError(f"No operation is called {only!r}.")
    by_op: dict[str, list[OpCheck]] = {}
    for check in checks:
        by_op.setdefault(check.op, []).append(check)
    for op, group in by_op.items():
        worst = max(group, key=lambda check: check.error / max(check.limit, 1e-30))
        verdict = "ok" if all(check.passed for check in group) else "FAILED"
        _show(
            op,
            f"{verdict:<7}{len(group):>3} checks, worst error {worst.error:.1e} "
            f"of {worst.limit:.1e} ({worst.case})",
        )
    failed = [check for check in checks if not check.passed]
    for check in failed:
        reason = check.problem or f"error {check.error:.3e} exceeds {check.limit:.1e}"
        _show("  FAILED", f"{check.op} ({check.case}): {reason}")
    return not failed


@contextmanager
def _find_model(name: str | None) -> Iterator[_Model]:
    """Finds the model of that name; without one the demo model, or one of random numbers."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = find_model(name or DEMO_MODEL)
        except ModelFileNotFound:
            if name is not None:
                raise
            path = Path(folder) / "synthetic.gguf"
            write_synthetic_model(path)
        with open_checkpoint(path) as checkpoint:
            config = checkpoint.config
            if not config.causal:
                raise ConfigurationError(
                    f"{path.name} is an encoder, but what is compared are the tokens that models "
                    "write. --ops-only checks the operations, those of encoders too."
                )
            if checkpoint.has_tokenizer:
                tokenizer = Tokenizer(checkpoint.read_tokenizer())
                prompts = [tokenizer.encode(text, parse_special=False) for text in TEXTS]
            else:
                lengths = (5, 18, 7, 32)
                vocab = config.vocab_size
                prompts = [[(7 * i + 31 * n) % vocab for i in range(n)] for n in lengths]
            context = min(MAX_CONTEXT, config.max_context)
            yield _Model(checkpoint, f"{path.name}, {config.architecture}", prompts, context)


def _verify_model(
    backend: Backend, model: _Model, settings: Settings, tokens: int, console: Console
) -> bool:
    _show("model", f"{model.title}, {len(model.prompts)} prompts, {tokens} tokens each")
    is_tower_right, shown = _verify_tower(backend, model.checkpoint, settings, console)
    with console.status("loading") as status:
        started = time.perf_counter()
        candidate = backend.load(model.checkpoint, _options(model, settings), _ignore_progress)
        seconds = time.perf_counter() - started
        with closing(candidate):
            info = candidate.info
            _show("load", f"{info.weights_bytes / 2**20:,.0f} MiB in {seconds:.1f} s{_on(info)}")
            is_right = info.graphs != "failed"
            _show("graphs", _about_graphs(info))
            reference = registry.create(registry.REFERENCE).load(
                model.checkpoint, _options(model, Settings()), _ignore_progress
            )
            with closing(reference):
                status.update("comparing with the reference, which is slow")
                try:
                    for found in compare(candidate, reference, model.prompts, tokens):
                        _show_comparison(found)
                        is_right = is_right and found.passed
                    if shown is not None:
                        texts = model.prompts[0], model.prompts[-1]
                        around = compare_shown(candidate, reference, shown, texts)
                        _show_comparison(around)
                        is_right = is_right and around.passed
                except EngineError as error:
                    _show("run", f"FAILED {error.message}")
                    return False
            if is_right:
                speed = decode_speed(candidate, model.prompts[0], tokens)
                _show("decode", f"{speed:,.1f} tokens/s, one sequence, {info.kv_dtype} cache")
    return is_right and is_tower_right


def _verify_tower(
    backend: Backend, model: Checkpoint, settings: Settings, console: Console
) -> tuple[bool, EmbeddingSpan | None]:
    """Verifies the tower of a model that takes images.

    Returns:
        Whether it is right, and rows of a picture for the model, if there are any.
    """
    tower, vision = model.tower, model.vision
    if tower is None or vision is None:
        return True, None
    patches = min(tower.config.max_context, 2 * MOST_PATCHES)

    def options(chosen: Settings) -> LoadOptions:
        bounded = tower_options(_options_of(chosen, patches), tower.config)
        return replace(bounded, max_context=patches, max_batched_tokens=patches)

    with ExitStack() as stack, console.status("comparing towers"):
        try:
            candidate = backend.load(tower, options(settings), _ignore_progress)
        except (UnsupportedArchitecture, UnsupportedTensor) as error:
            _show("tower", f"left out: {error.message}")
            return True, None
        stack.enter_context(closing(candidate))
        reference = registry.create(registry.REFERENCE).load(
            tower, options(Settings()), _ignore_progress
        )
        stack.enter_context(closing(reference))
        try:
            formats = {tensor.format for tensor in tower.weights.values()}
            found, shown = compare_towers(
                candidate,
                reference,
                vision,
                is_quantised=any(each.is_quantised for each in formats),
            )
        except EngineError as error:
            _show("tower", f"FAILED {error.message}")
            return False, None
    _show_comparison(found)
    return found.passed, shown


def _about_graphs(info: RunnerInfo) -> str:
    """Returns the note on the check of graphs at load, or why there is none."""
    notes = (note for note in info.notes if note.startswith("graphs "))
    verdict = {"checked": "ok", "failed": "FAILED"}.get(info.graphs, info.graphs)
    return f"{verdict:<7}{next(notes, 'graphs').partition(' ')[2].strip()}".rstrip()


def _on(info: RunnerInfo) -> str:
    """Returns the addresses of the devices that share the model, in the order of the ranks."""
    devices = info.bus_ids
    return f" on {len(devices)} devices together: {', '.join(devices)}" if len(devices) > 1 else ""


def _show_comparison(found: Agreement | Continuation | TowerAgreement) -> None:
    _show(found.way, f"{'ok' if found.passed else 'FAILED':<7}{found}")
    for place in found.wrong:
        _show("  FAILED", place)


def _options(model: _Model, settings: Settings) -> LoadOptions:
    return _options_of(settings, model.context)


def _options_of(settings: Settings, context: int) -> LoadOptions:
    return LoadOptions(
        device=settings.device,
        max_context=context,
        max_sequences=4,
        max_batched_tokens=64,
        kv_blocks=None,
        kv_dtype=settings.kv_dtype,
        activation_bits=settings.activation_bits,
        graphs=settings.graphs,
        decode_variant=settings.decode_variant,
        shared_prefix=settings.shared_prefix,
        device_experts=settings.device_experts,
        memory_utilization=settings.memory_utilization,
        tensor_parallel=settings.tensor_parallel,
    )


def _ignore_progress(stage: str, share: float) -> None:
    """Ignores progress: loading for a check shows no bar of its own."""
