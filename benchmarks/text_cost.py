"""CPU time of preparing texts: plain prose, what is dense in one kind of mark or number, and mixtures.

python -m benchmarks.text_cost [--chars 200000] [--runs 3] [--levels spoken]
prints the table of docs/guides/text.md.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import time

from oscine.errors import RequestError
from oscine.text.options import TextOptions
from oscine.text.preparation import prepare_text

SHARED = {f"a{'b' * (number % 60)}{number}": "x" for number in range(200)}  # pronunciations with one first letter
LEVELS = {
    "raw, 200 entries": (TextOptions(text_level="raw", pronunciations=SHARED), "english"),
    "clean": (TextOptions(text_level="clean"), "english"),
    "spoken": (TextOptions(text_level="spoken"), "english"),
    "spoken, 200 entries": (TextOptions(text_level="spoken", pronunciations=SHARED), "english"),
    "spoken German": (TextOptions(text_level="spoken"), "german"),
    "spoken auto": (TextOptions(text_level="spoken"), "auto"),
}
MAX_CHARS = 200_000  # spelled out: server.max_text_chars
_DRAW = random.Random(5)
_SIGNS = "aB1 .,$€%/-:@#&()'\"½éßIVX\n*+=<>_😀年—“[]|`"


def _numbered(form: str, count: int = 400) -> str:
    """Different numbers: no reading is found in a cache."""
    return " ".join(form.format(n=_DRAW.randrange(10**6), h=_DRAW.randrange(24), m=_DRAW.randrange(10, 60))
                    for _ in range(count * 50)) + " "  # fmt: skip


CONTENTS = {
    "plain prose": "The old man sat by the window, and nobody knew why. ",
    "`a `": "a ", "`US$`": "US$", "`$1 `": "$1 ", "`1 `": "1 ", "`1/2 `": "1/2 ", "`Dr. `": "Dr. ", "`a.`": "a.",
    "`.`": ". ", "`-1`": "-1", "`( `": "( ", "`[](`": "[](", "`😀 `": "😀 ", "`— `": "— ", "`’`": "’", "`“a” `": "“a” ",
    "`*a* `": "*a* ", "`<b>`": "<b>", "`&amp;`": "&amp;", "`[a](b)`": "[a](b)", "`\\n- a`": "\n- a", "`May `": "May ",
    "`FBI `": "FBI ", "`a@b.c `": "a@b.c ", "`http://a.b `": "http://a.b ", "`年`": "年", "`é `": "é ",
    "`<sub alias=\"`": '<sub alias="', "`<sub alias=\"a\">b</sub>`": '<sub alias="a">b</sub>', "`<say-as `": "<say-as ",
    "`<say-as interpret-as='digits'>1</say-as> `": "<say-as interpret-as='digits'>1</say-as> ",
    "`<s>a</s>`": "<s>a</s>",
    "numbers": _numbered("{n}"), "prices": _numbered("${n}.{m}"), "dates": _numbered("2026-11-{h} May {h}, 19{m}"),
    "times": _numbered("{h}:{m} pm"), "units": _numbered("{n} km"), "codes": _numbered("K{n}Q-{m}PX"),
    "addresses": _numbered("a{n}@b.com"), "links": _numbered("https://a.com/{n}"), "words": _numbered("A{n}, b-{m}"),
    "random signs": "".join(_DRAW.choices(_SIGNS, k=200_000)),
}  # fmt: skip


def seconds(text: str, options: TextOptions, language: str, runs: int) -> float:
    """Best CPU time."""
    best = float("inf")
    for _ in range(runs):
        start = time.process_time()
        with contextlib.suppress(RequestError):  # no words, or too many of them
            prepare_text(text, options, language, max_chars=MAX_CHARS)  # as the server does
        best = min(best, time.process_time() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chars", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--levels", nargs="*", default=list(LEVELS))
    asked = parser.parse_args()
    print("| content |", " | ".join(asked.levels), "|\n|---|" + "---|" * len(asked.levels))
    for name, repeated in CONTENTS.items():
        text = (repeated * (asked.chars // len(repeated) + 1))[: asked.chars]
        times = [seconds(text, *LEVELS[level], asked.runs) for level in asked.levels]
        print(f"| {name} |", " | ".join(f"{one:.2f}" for one in times), "|", flush=True)


if __name__ == "__main__":
    main()
