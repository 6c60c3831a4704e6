"""Every error ROCmForge raises on purpose.

RocmForgeError
├── RequestError            the client's mistake; `param` names the field
│   ├── InvalidParameter
│   ├── UnsupportedFeature
│   ├── ContextLengthExceeded
│   ├── ModelNotFound
│   ├── ResponseNotFound
│   ├── NotAuthenticated
│   ├── NotAuthorized
│   ├── RequestTimeout
│   ├── HeadersTooLarge
│   └── RequestTooLarge
├── CapacityError           not now; `retry_after_s` says when to come back
│   ├── QueueFull
│   ├── RateLimited
│   ├── NotReady            loading, restarting
│   ├── ModelUnavailable    could not be loaded when a request came
│   ├── Draining
│   └── DeadlineExceeded
├── EngineError             our fault, or the device's
│   ├── BackendError
│   ├── OutOfMemory
│   └── EngineDied
├── ModelLoadError          the file, or what it asks for
│   ├── BadGguf
│   ├── BadFolder
│   ├── BadTokenizer
│   ├── BadTemplate
│   ├── UnsupportedArchitecture
│   ├── UnsupportedTensor
│   ├── BadAdapter
│   ├── ModelFileNotFound
│   └── DownloadFailed
├── RemoteError             a server that `rocmforge run --url` talks to
└── ConfigurationError      flags, environment, backends that do not exist

Errors carry fields; `str(error)` is one sentence that says what was wrong and what to do.
Nothing here knows HTTP: `api/http/errors.py` holds the one table that turns these into responses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum


class Fault(StrEnum):
    """The kinds of reasons for which an engine process ends; `engine.client.faults` has advice."""

    HANG = "hang"  # no news in time: a kernel that does not end, or a driver that waits
    RESET = "reset"  # the kernel reset the device
    LOST = "lost"  # the device or its driver does not answer any more
    MEMORY = "memory"  # an error in the device's memory that ECC cannot correct
    ADDRESS = "address"  # a kernel touched memory that is not there
    KERNEL = "kernel"  # a kernel failed otherwise
    CRASH = "crash"  # the process ended without a word
    ERROR = "error"  # anything else


class RocmForgeError(Exception):
    """Base of all errors raised on purpose; `message` is safe to show to a client."""

    fault = Fault.ERROR

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


# --- the client's mistakes -------------------------------------------------------------------


class RequestError(RocmForgeError):
    """A request that cannot be served as it was sent."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidParameter(RequestError):
    """A field has a wrong type, is out of range, or contradicts another."""


class UnsupportedFeature(RequestError):
    """A field asks for something this server or this model cannot do."""


class ContextLengthExceeded(RequestError):
    """Prompt and requested output do not fit into the context."""

    def __init__(
        self, *, limit: int, prompt_tokens: int, max_tokens: int | None, param: str
    ) -> None:
        needed = f"the prompt has {prompt_tokens}"
        if max_tokens:
            needed = (
                f"{prompt_tokens + max_tokens} are needed: {prompt_tokens} for the prompt and "
                f"{max_tokens} for the completion"
            )
        super().__init__(
            f"This model's maximum context length is {limit} tokens, but {needed}. "
            "Shorten the prompt or ask for fewer tokens.",
            param=param,
        )
        self.limit = limit
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens


class ModelNotFound(RequestError):
    """The request names a model this server does not serve."""

    def __init__(self, model: str, available: tuple[str, ...]) -> None:
        super().__init__(
            f"The model {_short(model)!r} does not exist. Available: {', '.join(available)}.",
            param="model",
        )
        self.model = model
        self.available = available


class ResponseNotFound(RequestError):
    """The request names a stored response that does not exist, or not any more."""

    def __init__(self, response_id: str) -> None:
        super().__init__(
            f"Response with id {_short(response_id)!r} not found. It may never have been stored; "
            "the server keeps a limited number, and none across restarts.",
            param="response_id",
        )
        self.response_id = response_id


class NotAuthenticated(RequestError):
    """No key, or a wrong one."""


class NotAuthorized(RequestError):
    """A right key, but not for this."""


class RequestTimeout(RequestError):
    """The client took too long to send its request."""


class HeadersTooLarge(RequestError):
    """The request line and headers, or the trailers, are larger than the server accepts."""

    def __init__(self, *, limit_bytes: int) -> None:
        super().__init__(f"The headers of the request are larger than {limit_bytes} bytes.")
        self.limit_bytes = limit_bytes


class UnknownPath(RequestError):
    """The server has nothing at this path."""

    def __init__(self, *, similar: str | None) -> None:
        hint = "" if similar is None else f" Did you mean {similar}?"
        super().__init__(f"This path does not exist.{hint} GET /openapi.json lists the paths.")


class RequestTooLarge(RequestError):
    """The body is larger than the server accepts."""

    def __init__(self, *, limit_bytes: int) -> None:
        super().__init__(f"The request body is larger than {limit_bytes} bytes.")
        self.limit_bytes = limit_bytes


def _short(text: str, limit: int = 200) -> str:
    """Shortens what a client wrote, so that it can be repeated to it."""
    return text if len(text) <= limit else f"{text[:limit]}..."


# --- not now ---------------------------------------------------------------------------------


class CapacityError(RocmForgeError):
    """The request is fine, but cannot be taken now."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueFull(CapacityError):
    """The queue holds as many requests as the server is willing to keep waiting."""


class RateLimited(CapacityError):
    """The key has used up what it may use."""


class NotReady(CapacityError):
    """The model is still loading, or the engine is being restarted."""


class ModelUnavailable(CapacityError):
    """The model that a request names could not be loaded for it."""

    def __init__(self, model: str, reason: str, *, retry_after_s: float) -> None:
        super().__init__(
            f"The model {model!r} could not be loaded: {reason.rstrip('.')}.",
            retry_after_s=retry_after_s,
        )
        self.model = model
        self.reason = reason


class Draining(CapacityError):
    """The server is shutting down and finishes what it has."""


class DeadlineExceeded(CapacityError):
    """The request's deadline passed before it was finished."""


# --- our fault -------------------------------------------------------------------------------


class EngineError(RocmForgeError):
    """Something failed while running the model."""


class BackendError(EngineError):
    """A backend call failed. `call` names it, `detail` says how, `fault` of what kind it is."""

    def __init__(self, call: str, detail: str, fault: Fault = Fault.ERROR) -> None:
        super().__init__(f"{call} failed: {detail}")
        self.call = call
        self.detail = detail
        self.fault = fault


class OutOfMemory(EngineError):
    """The model, its cache or a step does not fit; the message names sizes."""


class EngineDied(EngineError):
    """The engine process ended or stopped answering while requests were running."""


# --- the model file --------------------------------------------------------------------------


class ModelLoadError(RocmForgeError):
    """The model cannot be loaded. `path` is the file or folder that the message names, if known."""

    path: str | None = None


@contextmanager
def naming(path: object) -> Iterator[None]:
    """Lets errors of what a file or folder says name it: a server may read several."""
    try:
        yield
    except (BadTokenizer, UnsupportedArchitecture, UnsupportedTensor) as error:
        if error.path is None:
            error.path = str(path)
            if not error.message.startswith(error.path):  # as that of a file within a folder
                error.message = f"{path}: {error.message}"
                error.args = (error.message,)
        raise


class ModelFileNotFound(ModelLoadError):
    """No such model file or known model name."""


class DownloadFailed(ModelLoadError):
    """A model could not be fetched; what has come of it is kept for the next try."""


class NotInHub(DownloadFailed):
    """The hub has no such repository, or no such file in it."""


class BadGguf(ModelLoadError):
    """The file is not valid GGUF. `offset` is the byte at which that was noticed."""

    def __init__(self, path: str, reason: str, *, offset: int | None = None) -> None:
        where = "" if offset is None else f" at byte {offset}"
        super().__init__(f"{path}: not a valid GGUF file{where}: {reason}")
        self.path = path
        self.reason = reason
        self.offset = offset


class BadFolder(ModelLoadError):
    """A folder of Hugging Face's layout is broken, or reaches out of itself."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}.")
        self.path = path
        self.reason = reason


class BadTokenizer(ModelLoadError):
    """The tokenizer in the file is missing, contradicts itself, or is of an unknown kind."""


class BadTemplate(ModelLoadError):
    """The chat template does not compile, or misbehaves."""


class UnsupportedArchitecture(ModelLoadError):
    """The file's architecture has no row in the architecture table."""

    def __init__(self, architecture: str, supported: tuple[str, ...]) -> None:
        super().__init__(
            f"Architecture {architecture!r} is not supported. Supported: {', '.join(supported)}."
        )
        self.architecture = architecture
        self.supported = supported


class UnsupportedTensor(ModelLoadError):
    """A tensor is missing, unexpected, of the wrong shape, or of a type we cannot read."""

    def __init__(self, tensor: str, reason: str) -> None:
        super().__init__(f"Tensor {tensor!r}: {reason}")
        self.tensor = tensor
        self.reason = reason


class BadAdapter(ModelLoadError):
    """A LoRA adapter is broken, or does not fit the model. `tensor` is the one it was seen at."""

    def __init__(self, path: str, reason: str, *, tensor: str | None = None) -> None:
        where = "" if tensor is None else f" tensor {tensor!r}:"
        super().__init__(f"The LoRA adapter {path} cannot be used:{where} {reason}.")
        self.path = path
        self.reason = reason
        self.tensor = tensor


# --- other servers ---------------------------------------------------------------------------


class RemoteError(RocmForgeError):
    """A server cannot be reached, refuses, or answers something that makes no sense.

    `is_full` says that the conversation does not fit its context.
    """

    def __init__(self, message: str, *, is_full: bool = False) -> None:
        super().__init__(message)
        self.is_full = is_full


# --- how the program was started -------------------------------------------------------------


class ConfigurationError(RocmForgeError):
    """Flags, environment or installation do not make sense; the message says what to change."""
