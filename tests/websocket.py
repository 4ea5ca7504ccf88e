"""`connect` of the websockets library with limits that only a hung server reaches, however busy the machine is."""

from functools import partial

from websockets.sync import client

connect = partial(client.connect, open_timeout=600, ping_timeout=None)
