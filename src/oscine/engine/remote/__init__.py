WORKER = "oscine.engine.remote.worker"  # the module that a worker process runs (process/child.py)
