"""The operator's settings of the HTTP side."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """Settings of the web application; the listening socket is not its business."""

    cors_origins: tuple[str, ...] = ()  # browser origins that may call; "*" = all
    image_hosts: tuple[str, ...] = ()  # images may be fetched from; see `api.images.hosts`
    max_body_bytes: int = 16 * 1024 * 1024
    receive_timeout_s: float = 30.0  # for a request's body to arrive
    local_names_only: bool = False  # answer to localhost only; see `api.http.hosts`
    has_tls: bool = False
    strict_requests: bool = False  # refuse fields that are not known; see `api.http.unknown_fields`
    has_page: bool = True  # people chat at /; else it leads to the API's description
    vllm_metrics: bool = False  # export metrics under vLLM's names too
    keep_alive_s: float = 15.0  # a silent stream gets a comment this often
    max_stored_response_bytes: int = 256 * 1024 * 1024
    max_stored_responses: int = 1000  # of /v1/responses; the ones not used longest go first
