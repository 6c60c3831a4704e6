"""uvicorn as `serve` runs it: where it listens, how it speaks, and the certificate it shows."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Generator
from typing import Any, Final

import uvicorn
from uvicorn.config import create_ssl_context

from rocmforge.commands.http.protocol import bounded_protocol
from rocmforge.errors import ConfigurationError

logger = logging.getLogger(__name__)


class HttpServer(uvicorn.Server):
    """uvicorn, except that signals are ours: it would cut streams off before they are drained."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leaves them alone."""
        yield


_OF_PORTS: Final = (errno.EADDRINUSE, errno.EACCES)


def listen(host: str, port: int) -> socket.socket:
    """Binds a socket that has asyncio set TCP_NODELAY on the connections it accepts.

    asyncio sets it on sockets whose protocol is TCP, and a connection has the protocol of its
    listener. `socket.create_server` leaves it at 0. Without TCP_NODELAY a small packet waits until
    the one before it is acknowledged, which takes clients 40 ms.

    Raises:
        ConfigurationError: nothing can listen there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        hint = " Choose another with --port." if error.errno in _OF_PORTS else ""
        why, *_ = str(error.strerror).partition(" (while ")  # Python repeats the address
        raise ConfigurationError(f"Cannot listen on {host} port {port}: {why}.{hint}") from error
    return socket.socket(family, bound.type, socket.IPPROTO_TCP, fileno=bound.detach())


def http_config(
    app: Any,
    *,
    receive_timeout_s: float,
    tls_certificate: str | None = None,
    tls_key: str | None = None,
) -> uvicorn.Config:
    """Returns the settings of uvicorn, with the certificate loaded.

    Args:
        app: the ASGI application.
        receive_timeout_s: how long headers may take.
        tls_certificate: PEM file; None = no TLS.
        tls_key: PEM file of its key.

    Raises:
        ConfigurationError: the certificate or its key cannot be used.
    """
    config = uvicorn.Config(
        app,
        http=bounded_protocol(receive_timeout_s),
        ws="none",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        ssl_certfile=tls_certificate,
        ssl_keyfile=tls_key,
    )
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one
        raise _unusable(config, error) from error
    return config


class Certificate:
    """The certificate that new connections are shown. It can be read again while the server runs.

    A context that fails to load a pair keeps the half that it has read, and then fails every
    handshake. So each reading makes a context of its own, which takes over when it is complete:
    connections are handed to it at their first message.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        """Takes the context of a loaded `config`, if it has one, as the first."""
        self._config = config
        self._context = config.ssl
        if config.ssl is not None:
            config.ssl.sni_callback = self._choose

    def read(self) -> ssl.SSLContext | None:
        """Returns a context of the files as they are now; None without TLS.

        Raises:
            ConfigurationError: they cannot be read, or do not belong together.
        """
        config = self._config
        if config.ssl is None:
            return None
        assert config.ssl_certfile is not None, "TLS needs a certificate"
        try:
            return create_ssl_context(
                keyfile=config.ssl_keyfile,
                certfile=config.ssl_certfile,
                password=config.ssl_keyfile_password,
                ssl_version=config.ssl_version,
                cert_reqs=config.ssl_cert_reqs,
                ca_certs=config.ssl_ca_certs,
                ciphers=config.ssl_ciphers,
            )
        except OSError as error:
            raise _unusable(config, error) from error

    def use(self, context: ssl.SSLContext | None) -> None:
        """Shows the certificate of `context` from the next connection on."""
        self._context = context

    def _choose(self, tls: ssl.SSLObject, name: str | None, first: ssl.SSLContext) -> None:
        """Chooses the certificate; OpenSSL calls it for each client, named server or not."""
        assert self._context is not None, "there are no handshakes without TLS"
        tls.context = self._context


def _unusable(config: uvicorn.Config, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"Cannot use the certificate {config.ssl_certfile}: {error}.")
