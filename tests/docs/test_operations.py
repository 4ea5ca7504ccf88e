"""Two pages are generated from the code, and docs/operations.md names exactly the metrics that the server has."""

import re
from pathlib import Path

from prometheus_client.core import Metric

import configuration_docs
import python_docs
from oscine.config import ServerConfig
from oscine.server.http.api_keys import ApiKeys
from oscine.server.http.metrics import Metrics
from oscine.speech.limits import ledger_of
from oscine.speech.phrase_cache import PhraseCache

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def exposed_name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def test_the_configuration_page_is_up_to_date() -> None:
    shown = configuration_docs.PAGE.read_text(encoding="utf-8")
    assert shown == configuration_docs.page(), "run `python tools/configuration_docs.py`"


def test_the_page_of_the_python_api_is_up_to_date() -> None:
    assert python_docs.PAGE.read_text(encoding="utf-8") == python_docs.page(), "run `python tools/python_docs.py`"


def test_every_metric_is_documented_with_its_type_and_no_other_is() -> None:
    metrics = Metrics(tuple)
    metrics.watch_phrases(PhraseCache(0, ledger_of(ServerConfig())["phrase"]))
    metrics.watch_keys(ApiKeys(ServerConfig()))
    exposed = {(exposed_name(family), family.type) for family in metrics.registry.collect()}
    rows = re.findall(r"^\| `(oscine_\w+)` \| (\w+) \|", OPERATIONS.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(rows) == exposed
