"""A Ray cluster of one node, in processes of its own, which end with it.

`python -m tests.support.processes.ray_cluster PORT CPUS` starts it and does what it reads: a line
of JSON for each wish, and one for each answer. Ray's own modules warn when they are imported, and
tests take warnings for errors: the test process never imports them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.processes.server import ROOT, port_of, reserved_port

CPUS = 4  # that Ray counts with, whatever there are; it starts as many idle workers
START_S = 240.0
POLL_S = 0.25


class RayCluster:
    """The program below, and the applications that it runs. Use `ray_cluster`.

    Args:
        program: what has been started.
        port: of the HTTP proxy.
        log: where all processes of the cluster write.
    """

    def __init__(self, program: subprocess.Popen[str], port: int, log: Path) -> None:
        self._program = program
        self._log = log
        self.url = f"http://127.0.0.1:{port}"

    @property
    def log(self) -> str:
        """What all processes have printed so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def ask(self, **wish: Any) -> Any:
        """Has the program do something, and returns what it says."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(json.dumps(wish) + "\n")
        self._program.stdin.flush()
        line = self._program.stdout.readline()
        assert line, f"the cluster has ended:\n{self.log}"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def deploy(
        self, args: Mapping[str, Any], replica: Mapping[str, Any], *, waits: bool = True
    ) -> None:
        """Deploys the application, or a change of it.

        Args:
            args: of the application.
            replica: of the deployment of replicas, as in a Serve config.
            waits: until all is as it should be.
        """
        application = {
            "name": "rocmforge",
            "route_prefix": "/",
            "import_path": "rocmforge.ray:app",
            "args": args,
            "deployments": [{"name": "Replica", **replica}],
        }
        self.ask(do="deploy", config={"applications": [application]})
        if waits:
            self.wait_until_healthy()

    def status(self) -> tuple[str, str]:
        """Whether the application runs as it should ("RUNNING", "HEALTHY"), or what is wrong."""
        found: list[str] = self.ask(do="status")
        return found[0], found[1]

    def wait_until_healthy(self, timeout_s: float = START_S) -> None:
        """Waits until the last deployment is complete."""
        deadline = time.monotonic() + timeout_s
        while (status := self.status()) != ("RUNNING", "HEALTHY"):
            is_lost = "FAILED" in status[0] or time.monotonic() > deadline
            assert not is_lost, f"{status}\n{self.log[-5000:]}"
            time.sleep(POLL_S)

    def replicas(self) -> dict[str, int]:
        """The process ids of the replicas that run, by id."""
        found: dict[str, int] = self.ask(do="replicas")
        return found

    def wait_for_replicas(self, number: int, timeout_s: float = 120.0) -> dict[str, int]:
        """Waits until so many run."""
        deadline = time.monotonic() + timeout_s
        while len(found := self.replicas()) != number:
            assert time.monotonic() < deadline, f"{found} run, not {number}:\n{self.log[-5000:]}"
            time.sleep(POLL_S)
        return found


@contextlib.contextmanager
def ray_cluster(folder: Path, cpus: int = CPUS) -> Iterator[RayCluster]:
    """Starts a cluster, and ends all its processes."""
    reserved, log = reserved_port(), folder / "ray.log"
    port = port_of(reserved)
    command = [sys.executable, "-m", "tests.support.processes.ray_cluster", str(port), str(cpus)]
    environment = {
        **os.environ,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": os.urandom(16).hex(),
        "RAY_DEDUP_LOGS": "0",
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": str(ROOT),
    }
    with log.open("wb") as output:
        program = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            start_new_session=True,
        )
    cluster = RayCluster(program, port, log)
    try:
        cluster.ask(do="nothing")
        yield cluster
    finally:
        with reserved, program:  # closes its pipes
            assert program.stdin is not None
            program.stdin.close()
            try:
                program.wait(60)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(program.pid, signal.SIGKILL)


def main(port: int, cpus: int) -> None:
    """Starts Ray and Serve, and does what standard input says until it ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever Ray prints

    import ray
    from ray import serve

    init = partial(
        ray.init,
        num_cpus=cpus,
        include_dashboard=False,
        object_store_memory=80 * 2**20,
        _node_ip_address="127.0.0.1",
    )
    _patiently(init, undo=ray.shutdown)
    address = {"host": "127.0.0.1", "port": port}
    _patiently(partial(serve.start, http_options=address, proxy_location="HeadOnly"))
    try:
        for line in sys.stdin:
            try:
                answer = {"result": _do(json.loads(line))}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    finally:
        serve.shutdown()
        ray.shutdown()


def _patiently(act: Callable[[], object], undo: Callable[[], object] = lambda: None) -> None:
    """Does what Ray gives half a minute or one to succeed, which a busy machine may not have."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            act()
            return
        except Exception:
            undo()
            if time.monotonic() > deadline:
                raise


def _do(wish: dict[str, Any]) -> Any:
    # What `serve run CONFIG` calls: the REST interface would need the dashboard.
    from ray.serve.context import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    client: Any = _get_global_client()
    match wish["do"]:
        case "deploy":
            _patiently(partial(client.deploy_apps, ServeDeploySchema(**wish["config"])))
        case "check":
            ServeDeploySchema(**wish["config"])
        case "replicas":
            return {
                each["replica_id"]: each["pid"]
                for application in client.get_serve_details()["applications"].values()
                for each in application["deployments"]["Replica"]["replicas"]
                if each["state"] == "RUNNING"
            }
        case "status":
            status = client.get_serve_details()["applications"]["rocmforge"]
            deployments = status["deployments"].values()
            states = {each["status"] for each in deployments} or {"none"}
            said = [status["message"], *(each["message"] for each in deployments)]
            is_well = states == {"HEALTHY"}
            return status["status"], "HEALTHY" if is_well else " ".join(filter(None, said))
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
