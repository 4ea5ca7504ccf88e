"""LiteLLM's SDK, one API for many providers; `openai/NAME` is any server with OpenAI's API."""

import litellm
from cases import Answer, Case, cases, raised, report


def speak(case: Case) -> Answer:
    try:
        got = litellm.speech(api_base=case["url"] + "/v1", api_key="any", max_retries=0, timeout=600, **case["fields"])
    except Exception as error:
        return raised(error, status=getattr(error, "status_code", None))
    return {"audio": got.content, "headers": dict(got.response.headers)}


if __name__ == "__main__":
    report({name: speak(case) for name, case in cases().items()})
