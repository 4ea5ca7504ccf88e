"""`oscine bench`: a client that meets a server only over the wire, and measures any that speaks OpenAI's speech API.

    workload  what is asked, in which order, when        targets  how each server wants to be asked
    client    HTTP, every read stamped                   live     the same over our WebSocket; both use pool
    exchange  what crossed the wire, and when            sound    its bytes become seconds of sound
    metrics   times become figures: pure functions       summary  many requests become one row
    load      closed loop, open loop, search             session  a whole run, with its line on the terminal
    record    JSON with its origin                       report   tables, Markdown, one HTML page with plots
    shapes    what a file must hold to be read           command  `oscine bench run | search | report`

What each figure means is defined once, in docs/metrics.md.
"""
