"""`oscine bench`: measures any server with OpenAI's speech API over the network.

    workload   texts, order, arrival times              targets           how to ask each server
    exchange   bytes and arrival times of one request   received_audio    decodes them
    metrics    figures of one request                   summary           one row of figures per load
    http_client, websocket_client, connections          stamp every read
    load       closed and open loops                    search            the highest sustained rate
    benchmark  one whole run                            record            result files
    report     tables, Markdown, HTML                   plots             charts

docs/metrics.md defines every figure.
"""
