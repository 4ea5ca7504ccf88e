"""The door: bytes in, bytes out. It knows the engine as a protocol only, and needs no torch."""
