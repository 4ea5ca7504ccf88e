"""`oscine bench model`: what the engine can do on this machine, without HTTP; with the codec, and codes only.

    ticks    successive frames of the runner, timed               listener  a player's clock over an engine
    measure  a checkpoint becomes figures                         command   options, progress, tables

gpu/bench_frame.py and gpu/bench_listeners.py, which look at parts, use the first two.
"""
