"""The request router of the replicas: Ray Serve's, with `routing.ranked` as its rule."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from rocmforge.ray.routing import Candidate, Hint, Key, ranked, unpacked

REMEMBER_S: Final = 15.0
"""So long a router takes a replica to have the prefix that it sent there, unless it says so."""
_MOST_REMEMBERED: Final = 4096


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """Routes by what replicas publish (`Replica.record_routing_stats`) and by their queues.

    Ray Serve has a router by prefix of its own. It keeps a tree of texts in one actor that every
    request asks, and knows where texts were sent, not what a cache still has.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._published: dict[ReplicaID, tuple[bytes, frozenset[Key]]] = {}
        self._sent: dict[ReplicaID, OrderedDict[Key, float]] = {}

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Ranks the replicas for a request; Ray Serve takes the first rank that has room."""
        hint = Hint()
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # when all are full
            hint = _hint_of(pending_request)
        replicas = {each.replica_id.unique_id: each for each in candidate_replicas}
        ranks = ranked([self._candidate(each) for each in candidate_replicas], hint)
        return [[replicas[name] for name in rank] for rank in ranks]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """Remembers what the replica is about to compute: it publishes a moment later."""
        sent = self._sent.setdefault(replica_id, OrderedDict())
        until = time.monotonic() + REMEMBER_S
        for key in _hint_of(pending_request).keys:
            sent[key] = until
            sent.move_to_end(key)
        while len(sent) > _MOST_REMEMBERED:
            sent.popitem(last=False)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Forgets what is known of replicas that are gone."""
        super().update_replicas(replicas)
        here = {each.replica_id for each in replicas}
        self._published = {key: value for key, value in self._published.items() if key in here}
        self._sent = {key: value for key, value in self._sent.items() if key in here}

    def _candidate(self, replica: RunningReplica) -> Candidate:
        stats = replica.routing_stats
        keys = self._keys_of(replica.replica_id, stats.get("keys", b""))
        sent = self._sent_lately(replica.replica_id)
        known = self.replica_queue_len_cache.get(replica.replica_id)
        return Candidate(
            id=replica.replica_id.unique_id,
            load=stats.get("load", 0) if known is None else known,
            is_ready=stats.get("ready", True),
            models=frozenset(stats.get("models", ())),
            num_keys=max(len(keys), len(sent)),
            has_key=lambda key: key in keys or key in sent,
        )

    def _sent_lately(self, replica_id: ReplicaID) -> Mapping[Key, float]:
        sent = self._sent.setdefault(replica_id, OrderedDict())
        now = time.monotonic()
        while sent and next(iter(sent.values())) < now:
            sent.popitem(last=False)
        return sent

    def _keys_of(self, replica_id: ReplicaID, row: bytes) -> frozenset[Key]:
        known = self._published.get(replica_id)
        if known is None or known[0] is not row:
            known = self._published[replica_id] = (row, unpacked(row))
        return known[1]


def _hint_of(request: PendingRequest) -> Hint:
    """Returns the hint that the ingress gave with a request; it is the first argument."""
    hint = request.args[0] if request.args else None
    return hint if isinstance(hint, Hint) else Hint()
