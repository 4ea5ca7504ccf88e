"""The section of docs/benchmarks.md about published sizes on a CPU."""

from __future__ import annotations

from benchmarks.report_table import SIZES, Columns, Result, Row, blocks, paragraph, section, table_of

_COLUMNS: Columns = {
    "weights": "{kind}",
    "listeners": "{listeners}",
    "x real time": "{x_real_time:.2f}",
    "times fp32": lambda row: f"{row['speedup']:.1f}" if row["speedup"] else "-",
    "frame, ms": "{frame_ms:.0f}",
    "talker, ms": "{talker_ms:.0f}",
    "predictor, ms": "{predictor_ms:.0f}",
    "codec, ms": "{codec_ms:.0f}",
    "first audio, ms": "{first_audio_ms:.0f}",
}
_LOADED: Columns = {
    "weights": "{key}",
    "loaded, s": "{loaded_s:.1f}",
    "memory, MiB": "{all}",
    "of it mapped from files, MiB": "{mapped}",
}


def cpu_section(results: list[Result]) -> str:
    how = """Published shapes with random weights on the backend that `oscine serve` uses. The kinds of weights take
        turns in one process; each figure is the least of all turns. Talker and predictor run beside the codec, which
        has a thread of its own where there are two. First audio: from admission to the samples of the first frame, for
        all listeners together. Memory: of a process that has spoken for one listener."""
    return section("Published sizes on a CPU", paragraph(how), results, lambda result: cpu_tables(result["figures"]))


def cpu_tables(figures: Row) -> str:
    sets = ", ".join(figures["instruction_sets"]) or "none of AVX2, AVX-512, VNNI, BF16, AMX"
    parts = [f"Threads: {figures['threads']}; instruction sets: {sets}."]
    for size, kinds in figures["sizes"].items():
        rows, loaded = {}, {}
        for kind, one in kinds.items():
            loaded[kind] = one | one["resident_mib"]
            for listeners, row in one["listeners"].items():
                fp32 = kinds.get("fp32", {}).get("listeners", {}).get(listeners)
                speedup = fp32["frame_ms"] / row["frame_ms"] if fp32 else None
                rows[f"{kind}, {listeners}"] = row | {"listeners": listeners, "speedup": speedup, "kind": kind}
        parts += [f"**{SIZES[size]}**", table_of(_COLUMNS, rows), table_of(_LOADED, loaded)]
    return blocks(*parts)
