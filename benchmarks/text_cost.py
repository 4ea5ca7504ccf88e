"""CPU time of preparing texts: plain prose, what is dense in one kind of mark or number, and mixtures.

python -m benchmarks.text_cost [--runs 3]
writes docs/results/text-cost.json, of which benchmarks.report makes the table of docs/guides/text.md.
"""

from __future__ import annotations

import contextlib
import random
import time

from benchmarks.results import read_arguments, save
from oscine.errors import RequestError
from oscine.text.options import TextOptions
from oscine.text.preparation import prepare_text

LEVELS = {
    "clean": (TextOptions(text_level="clean"), "english"),
    "spoken": (TextOptions(text_level="spoken"), "english"),
    "spoken German": (TextOptions(text_level="spoken"), "german"),
    "spoken auto": (TextOptions(text_level="spoken"), "auto"),
}
CHARS = MAX_CHARS = 200_000  # of a text, and of what it is spelled out: server.max_text_chars
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
    options = read_arguments(__doc__, runs=3)
    figures: dict[str, dict[str, dict[str, float]]] = {"seconds": {}, "ms_of_1000_chars": {}}
    for name, repeated in CONTENTS.items():
        text = (repeated * (CHARS // len(repeated) + 1))[:CHARS]
        whole = {level: round(seconds(text, *LEVELS[level], options.runs), 3) for level in LEVELS}
        short = {level: round(1000 * seconds(text[:1000], *LEVELS[level], 3 * options.runs), 2) for level in LEVELS}
        figures["seconds"][name], figures["ms_of_1000_chars"][name] = whole, short
        print(name, whole, flush=True)
    print(save(options.out, "text-cost", figures))


if __name__ == "__main__":
    main()
