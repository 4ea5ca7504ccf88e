"""Fails unless the server in this container accepts requests. Follows the container's environment, not flags."""

import os
import ssl
import urllib.request


def address(environment: dict[str, str]) -> str:
    port = environment.get("OSCINE_SERVE_SERVER__PORT", "8000")
    scheme = "https" if environment.get("OSCINE_SERVE_SERVER__TLS_CERT") else "http"
    return f"{scheme}://127.0.0.1:{port}/ready"


if __name__ == "__main__":
    # The certificate is made for the server's public name; inside the container nobody else can answer.
    direct = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=ssl._create_unverified_context())
    )
    direct.open(address(dict(os.environ)), timeout=4).close()
