"""Oscine on Ray Serve: `serve run oscine.deploy.ray:app`. Needs the extra `ray`."""

from oscine.deploy.ray.application import app

__all__ = ["app"]
