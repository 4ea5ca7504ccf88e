"""Plans of live sessions: the defaults of `session.config`, which differ between the protocols of one WebSocket."""

from __future__ import annotations

from dataclasses import replace

from oscine.config import FormatName, ServerConfig
from oscine.server.live.config import LiveConfig
from oscine.server.live.connection import LiveConnection
from oscine.server.model_registry import ServedModel
from oscine.server.service import Service
from oscine.server.speech_plan import SpeechPlan


async def live_plan(service: Service, connection: LiveConnection, model: ServedModel, config: LiveConfig) -> SpeechPlan:
    """Raises ApiError or RequestError."""
    for_vllm_omni = config.is_vllm_omnis and not connection.is_own_client
    default: FormatName = service.config.default_format or ("wav" if for_vllm_omni else "pcm")
    plan = await service.planner.plan(model, config, "", default)
    whole_files = _sends_whole_files(config, plan, service.config, for_vllm_omni=for_vllm_omni)
    return replace(plan, split=config.split, whole_files=whole_files)


def _sends_whole_files(config: LiveConfig, plan: SpeechPlan, server: ServerConfig, *, for_vllm_omni: bool) -> bool:
    """Whether each file is sent in one frame. As over HTTP, a file whose header states its length is sent when it is
    complete, unless the client asks for a stream. vLLM-Omni sends no file as a stream then."""
    if config.streams is not None:
        return not config.streams
    return for_vllm_omni or (plan.format.needs_length and not server.stream_wav)
