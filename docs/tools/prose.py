"""Checks spelling and grammar of the pages and of the other documents, with Harper.

    python -m docs.tools.prose

Harper works offline: its program is in its wheel. The terms of the field are in terms.txt; a word
with a digit or with a capital behind another letter is a name, and is not looked up.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
TERMS: Final = Path(__file__).with_name("terms.txt")
_HARPER: Final = Path(sys.executable).with_name("harper")
_NAME: Final = re.compile(r"\w?('s|\.)?|.*\d.*|.*.[A-Z].*|[A-Z]\w+'s")
# What they say of these pages is a matter of taste, of tables and code, or mostly wrong.
_NOT_ASKED: Final = (
    *("CallThem", "CompoundNouns", "CondenseAllThe", "DiscourseMarkers", "DisjointPrefixes"),
    *("ExpandControl", "ExpandMemoryShorthands", "ExpandMinimum", "ExpandTimeShorthands"),
    *("InflectedVerbAfterTo", "LongSentences", "MassNouns", "MergeWords", "MissingDeterminer"),
    *("MissingPreposition", "MissingTo", "NumericRangeEnDash", "OneOfTheSingular"),
    *("OrthographicConsistency", "OutOfDate", "Overall", "OxfordComma", "PronounInflectionBe"),
    *("QuantifierNumeralConflict", "SentenceCapitalization", "SplitWords", "ThatThan"),
    *("TheirToTheyre", "ToTwoToo", "UseEllipsisCharacter", "UseTitleCase"),
)


def documents() -> list[Path]:
    """Returns the documents that people write; the reference pages are made from the code."""
    return sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/benchmarks/*.md")))


def findings(paths: Sequence[Path]) -> Iterator[str]:
    """Yields a line for each finding: its place, the text and what is wrong."""
    ignored = (word for rule in _NOT_ASKED for word in ("--ignore", rule))
    command = [str(_HARPER), "lint", "--format", "json", "--dialect", "british", *ignored]
    command += ["--user-dict-path", str(TERMS), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for file in json.loads(done.stdout or "[]"):
        for lint in file["lints"]:
            text = lint["matched_text"]
            if lint["rule"] != "SpellCheck" or not _NAME.fullmatch(text):
                yield f"{file['file']}:{lint['line']}: {text!r}: {lint['message']}"
    if not done.stdout:
        yield done.stderr


def main() -> int:
    """Prints what is wrong; returns 1 if anything is."""
    found = list(findings(documents()))
    print(*found, sep="\n")
    return min(1, len(found))


if __name__ == "__main__":
    sys.exit(main())
