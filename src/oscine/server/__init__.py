"""HTTP and WebSocket front end. It knows the engine only as a protocol and needs no torch."""
