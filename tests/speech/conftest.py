from tests.server.conftest import engine  # noqa: F401 (a fixture)
