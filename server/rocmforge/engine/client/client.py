"""The engine as the HTTP side sees it: submit a prompt, await events."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from rocmforge.backend.protocol import RunnerInfo
from rocmforge.engine.client.config import EngineConfig
from rocmforge.engine.client.handle import GenerationHandle
from rocmforge.engine.client.prompt_checks import check_prompt
from rocmforge.engine.client.sampling_checks import check_sampling
from rocmforge.engine.client.supervisor import Supervisor
from rocmforge.engine.client.verifier import Verifier
from rocmforge.engine.ipc.params import GenerateRequest
from rocmforge.engine.ipc.status import EngineState, EngineStatus
from rocmforge.engine.ipc.totals import Totals
from rocmforge.errors import Draining, NotReady, RocmForgeError
from rocmforge.sensors.kernel_log import KernelEvent
from rocmforge.sensors.watch import DeviceWatch

_RETRY_AFTER_S = 5.0
"""For another server, or a process that is being started, to be there."""


class AsyncEngine:
    """Keeps an engine process alive and shares its work among handles. One event loop only.

    Args:
        config: what to run and how.
        totals: what its counters begin with; None = at 0.
        verifier: has a sample of what is served computed again; None = nothing is.
        watch: of the devices; None = nobody looks after them.
    """

    def __init__(
        self,
        config: EngineConfig,
        totals: Totals | None = None,
        verifier: Verifier | None = None,
        watch: DeviceWatch | None = None,
    ) -> None:
        self._has_vocabulary = config.vocabulary is not None
        self._verifier = verifier
        self._supervisor = Supervisor(config, totals or Totals(), verifier, watch)
        self._requests = self._supervisor.requests
        self._is_draining = False

    async def start(self) -> None:
        """Begins to load; returns at once."""
        self._supervisor.start()

    async def wait_ready(self) -> None:
        """Waits until requests are taken.

        Raises:
            ModelLoadError, ConfigurationError, OutOfMemory, ...: the model cannot be loaded.
            EngineDied: the process ended while loading, or the engine was stopped.
        """
        await self._supervisor.wait_ready()

    async def wait_given_up(self) -> RocmForgeError:
        """Waits until an engine that was ready will never be again; returns why."""
        return await self._supervisor.wait_given_up()

    def end_for_device(self, device: str, event: KernelEvent) -> None:
        """Replaces the process if it uses a device that was reset or lost.

        It may go on as if nothing had happened, with weights that are not there any more.

        Args:
            device: its PCI address.
            event: one of `ENDED`.
        """
        self._supervisor.end_for_device(device, event)

    async def drain(self, timeout_s: float) -> bool:
        """Takes nothing new and waits for what is running; False if that took too long."""
        self._is_draining = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._requests.wait_idle()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Ends the process; whatever still runs gets an error. Idempotent."""
        await self._supervisor.stop()
        if self._verifier is not None:
            await self._verifier.end()

    @property
    def status(self) -> EngineStatus:
        """A snapshot."""
        status = self._supervisor.status
        if self._is_draining and status.state not in (EngineState.STOPPED, EngineState.FAILED):
            return replace(status, state=EngineState.DRAINING)
        return status

    @property
    def pid(self) -> int | None:
        """The engine process's id, while there is one."""
        process = self._supervisor.process
        return process.pid if process is not None else None

    def submit(self, request: GenerateRequest) -> GenerationHandle:
        """Sends a request to the engine, under a number of its own.

        Args:
            request: whose prompt and output fit into the context.

        Raises:
            Draining, NotReady, QueueFull: not now.
            InvalidParameter: the prompt is empty, a token id is not in the vocabulary, or rows of
                embeddings have another width than the model's.
            ContextLengthExceeded: a prompt with embeddings does not fit into the context.
            UnsupportedFeature: a grammar, a logits processor, an embedding, an adapter or rows of
                embeddings that the backend has no means for.
        """
        runner = self._ready_runner()
        self._requests.check_place(request.share)
        check_prompt(request, runner)
        check_sampling(request.sampling, runner, has_vocabulary=self._has_vocabulary)
        return self._requests.submit(request)

    def _ready_runner(self) -> RunnerInfo:
        supervisor = self._supervisor
        if self._is_draining:
            raise Draining("The server is shutting down.", retry_after_s=_RETRY_AFTER_S)
        state, error = supervisor.state, supervisor.load_error
        if state is EngineState.FAILED and error is not None:
            raise NotReady(error.message, retry_after_s=_RETRY_AFTER_S)
        if state is not EngineState.READY:
            raise NotReady(f"The model is not ready: {state}.", retry_after_s=_RETRY_AFTER_S)
        assert supervisor.runner is not None
        return supervisor.runner
