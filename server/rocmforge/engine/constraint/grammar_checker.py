"""Tries grammars out before the engine hears of them, in a process that may come to harm.

Grammars come from clients, and the library that compiles them recurses as deeply as they do: a
chain of a few thousand rules or references overflows the stack, which ends a process. Others would
take minutes. So each is first compiled in a helper process, on a smaller stack than the engine's
and with a limit on processor time and memory.
"""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import threading

from rocmforge.engine.ipc.grammar_name import grammar_name
from rocmforge.latest_used import LatestUsed
from rocmforge.text.output.grammar import find_problem

_REMEMBERED = 256
_PROBLEM_CHARACTERS = 2000  # it may quote the grammar
_STACK_BYTES = 2 << 20
_MEMORY_BYTES = 1 << 30


class GrammarChecker:
    """Finds out whether grammars compile. May be used from several threads.

    Args:
        cpu_s: processor time that one grammar may take.
    """

    def __init__(self, cpu_s: float = 1.0) -> None:
        self._cpu_s = cpu_s
        self._lock = threading.Lock()
        self._helper: subprocess.Popen[str] | None = None
        self._known: LatestUsed[str, str] = LatestUsed(_REMEMBERED)  # by name

    def problem(self, grammar: str) -> str:
        """Returns why a grammar in llguidance's serialised form cannot be used; "" if it can."""
        name = grammar_name(grammar)
        problem = self._known.find(name)  # while the helper is busy with another one's grammar
        if problem is None:
            with self._lock:
                problem = self._known.find(name)  # somebody may have asked meanwhile
                if problem is None:
                    problem = self._ask(grammar)[:_PROBLEM_CHARACTERS]
                    self._known.keep(name, problem, 1)
        return problem

    def close(self) -> None:
        """Ends the helper process. Idempotent."""
        with self._lock:
            if self._helper is not None:
                self._helper.kill()
                self._forget_helper(self._helper)

    def _ask(self, grammar: str) -> str:
        """Returns the problem, as a helper sees it that has not come to harm before."""
        if self._helper is not None:
            problem = self._answer(self._helper, grammar)
            if problem is not None:
                return problem
            self._forget_helper(self._helper)  # grammars before may have used up what it may take
        helper = self._helper = self._start()
        problem = self._answer(helper, grammar)
        return self._explain(self._forget_helper(helper)) if problem is None else problem

    def _answer(self, helper: subprocess.Popen[str], grammar: str) -> str | None:
        """Returns what a helper says of a grammar; None if it has ended."""
        assert helper.stdin is not None
        assert helper.stdout is not None
        try:
            helper.stdin.write(json.dumps(grammar) + "\n")
            helper.stdin.flush()
            answer = helper.stdout.readline()
        except BrokenPipeError:
            answer = ""
        problem: str | None = json.loads(answer) if answer else None
        return problem

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "rocmforge.engine.constraint.grammar_checker", str(self._cpu_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            start_new_session=True,  # the terminal's ^C is for the server only
        )

    def _forget_helper(self, helper: subprocess.Popen[str]) -> int:
        """Waits for its end; returns its exit status."""
        self._helper = None
        helper.communicate()
        return helper.returncode

    def _explain(self, status: int) -> str:
        match -status:
            case signal.SIGPROF:
                return f"it takes more than {self._cpu_s:g} s of processor time to compile"
            case signal.SIGSEGV:
                return "its rules or references form too long a chain"
            case _:
                return f"it takes more than {_MEMORY_BYTES >> 20} MiB of memory to compile"


def answer_all(cpu_s: float) -> None:
    """Serves the helper process: reads a grammar a line, writes its problem a line."""
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, cpu_s)  # its signal ends the process
        problem = find_problem(json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(problem), flush=True)


def main() -> None:
    """Runs the helper process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=answer_all, args=[float(sys.argv[1])])
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
