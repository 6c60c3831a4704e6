"""What routing by prefix gives, and whether change loses requests: a Ray cluster on this machine.

    python -m benchmarks.ray_serve prefixes
    python -m benchmarks.ray_serve scaling
    python -m benchmarks.ray_serve failing
    python -m benchmarks.ray_serve updating

`prefixes`: conversations take turns, each with a long beginning of its own. Two replicas have room
for seven of the twelve beginnings each. Once the router is ours, once it is Ray Serve's
default, by load alone.

`scaling`: streams come and go; Ray Serve makes three replicas of one, and one of three.

`failing`: one of two replicas is killed while 32 streams run or wait, each asked once.

`updating`: a change of a setting replaces both replicas while eight streams follow each other.

A tiny model on the reference backend: what is measured is where requests go, not how fast they are.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from tests.support.models.speaking import write_speaking
from tests.support.processes.ray_cluster import RayCluster, ray_cluster

NAME: Final = "tiny"
ACTOR: Final = {"num_cpus": 0.5, "num_gpus": 0}
BY_LOAD: Final = "ray.serve._private.request_router:PowerOfTwoChoicesRequestRouter"
BEGINNING: Final = 1000  # tokens, about
CONVERSATIONS: Final = 12
TURNS: Final = 8
ROOM: Final = 7  # beginnings that one replica has room for
BLOCK: Final = 16


def main() -> None:
    """Measures what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ray_serve")
    what = {
        "prefixes": _prefixes,
        "scaling": _scaling,
        "failing": _failing,
        "updating": _updating,
    }
    parser.add_argument("what", choices=what)
    measure = what[parser.parse_args().what]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        args = {
            "model": [f"{NAME}={write_speaking(folder, 'llama')}"],
            "backend": "reference",
            "max_context": 2048,
            "max_sequences": 8,
        }
        with ray_cluster(folder) as cluster:
            measure(cluster, args)


# --- prefixes ---


def _prefixes(cluster: RayCluster, args: dict[str, Any]) -> None:
    limited = {**args, "kv_blocks": ROOM * (BEGINNING + 2 * BLOCK) // BLOCK}
    shares: dict[str, float] = {}
    for title, router in (("prefix", {}), ("load", {"request_router_class": BY_LOAD})):
        replica: dict[str, Any] = {"num_replicas": 2, "ray_actor_options": ACTOR}
        if router:
            replica["request_router_config"] = router
        # Another number makes another version: replicas that have computed nothing.
        cluster.deploy({**limited, "max_waiting": 100 + len(shares)}, replica)
        shares[title] = _share_found(cluster)
        print(f"routed by {title}: {shares[title]:.1%} of prompt tokens were found", flush=True)
    print(f"{shares['prefix'] / shares['load']:.1f} times as many")


def _share_found(cluster: RayCluster) -> float:
    """Returns the share of prompt tokens that were in a cache, from each one's second turn on."""
    beginnings = [
        "".join(chr(97 + (number * 7 + place * place) % 26) for place in range(BEGINNING))
        for number in range(CONVERSATIONS)
    ]
    counts: Counter[str] = Counter()
    with httpx.Client(base_url=cluster.url, timeout=120) as client:
        for turn in range(TURNS):
            for beginning in beginnings:
                body = {"model": NAME, "prompt": f"{beginning} turn {turn}", "max_tokens": 2}
                answer = client.post("/v1/completions", json=body)
                usage = answer.raise_for_status().json()["usage"]
                if turn:
                    counts["prompt"] += usage["prompt_tokens"]
                    counts["found"] += usage["prompt_tokens_details"]["cached_tokens"]
    return counts["found"] / counts["prompt"]


# --- scaling ---

AUTOSCALING: Final[Mapping[str, Any]] = {
    "min_replicas": 1,
    "max_replicas": 3,
    "target_ongoing_requests": 4,
    "upscale_delay_s": 2,
    "downscale_delay_s": 8,
    "metrics_interval_s": 1,
    "look_back_period_s": 4,
    "policy": {
        "policy_function": "rocmforge.ray.autoscaling:FirstTokenPolicy",
        "policy_kwargs": {"target_first_token_s": 30.0},
    },
}


@dataclass
class Load:
    """Streams that follow each other, in threads, until told otherwise."""

    url: str
    wanted: int = 1  # at once
    begun: Counter[int] = field(default_factory=Counter)  # streams by number
    ended: Counter[str] = field(default_factory=Counter)
    over: threading.Event = field(default_factory=threading.Event)

    def run(self, number: int) -> None:
        """Follows streams of that number while so many are wanted."""
        while not self.over.is_set():
            if number >= self.wanted:
                self.over.wait(0.1)
                continue
            try:
                self.ended[self.follow(number)] += 1
            except httpx.HTTPError as error:
                self.ended[type(error).__name__] += 1

    def follow(self, number: int) -> str:
        """Asks once; returns how it ended."""
        body = {"model": NAME, "prompt": f"{number} is", "max_tokens": 100, "stream": True}
        with httpx.stream(
            "POST",
            f"{self.url}/v1/completions",
            json={**body, "ignore_eos": True},
            timeout=120,
            verify=False,
        ) as response:
            lines: list[str] = []
            for line in filter(None, response.iter_lines()):
                self.begun[number] += not lines
                lines.append(line)
        if response.status_code != httpx.codes.OK:
            return str(response.status_code)
        if lines[-1] == "data: [DONE]":
            return "complete"
        return "an error event" if '"error"' in lines[-1] else "broken off"


def _scaling(cluster: RayCluster, args: dict[str, Any]) -> None:
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:5.0f} s  {what}", flush=True)

    replica = {"autoscaling_config": AUTOSCALING, "ray_actor_options": ACTOR}
    cluster.deploy(args, replica)
    load = Load(cluster.url)
    with ThreadPoolExecutor(24) as threads:
        running = [threads.submit(load.run, number) for number in range(24)]
        try:
            for wanted, replicas in ((1, 1), (24, 3), (1, 1)):
                load.wanted = wanted
                cluster.wait_for_replicas(replicas, timeout_s=240)
                say(f"{wanted} streams: {replicas} replicas; {dict(load.ended)}")
        finally:
            load.over.set()
        for each in running:
            each.result()
    say(f"the end: {dict(load.ended)}")


# --- failing and updating ---

PAIR: Final[Mapping[str, Any]] = {"num_replicas": 2, "ray_actor_options": ACTOR}
STREAMS: Final = 32
FOLLOWING: Final = 8


def _failing(cluster: RayCluster, args: dict[str, Any]) -> None:
    cluster.deploy(args, PAIR)
    load = Load(cluster.url)
    with ThreadPoolExecutor(STREAMS) as threads:
        running = [threads.submit(load.follow, number) for number in range(STREAMS)]
        while len(load.begun) <= args["max_sequences"]:  # both replicas speak
            time.sleep(0.01)
        begun = len(load.begun)
        os.kill(min(cluster.replicas().values()), signal.SIGKILL)
        ended = Counter(each.result() for each in running)
    print(f"{begun} of {STREAMS} streams had begun when a replica was killed: {dict(ended)}")


def _updating(cluster: RayCluster, args: dict[str, Any]) -> None:
    cluster.deploy(args, PAIR)
    before = cluster.replicas().keys()
    load = Load(cluster.url, wanted=FOLLOWING)
    with ThreadPoolExecutor(FOLLOWING) as threads:
        running = [threads.submit(load.run, number) for number in range(FOLLOWING)]
        began = time.monotonic()
        try:
            cluster.deploy({**args, "max_waiting": 100}, PAIR)
            took = time.monotonic() - began
        finally:
            load.over.set()
        for each in running:
            each.result()
    kept = before & cluster.replicas().keys()
    print(f"updated in {took:.0f} s, {len(kept)} of the replicas kept: {dict(load.ended)}")


if __name__ == "__main__":
    main()
