"""Endpoints of /v1/models: list and describe the served models."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from oscine.server.model_registry import ServedModel
from oscine.server.model_routing import OPENAI_MODELS
from oscine.server.service import Service
from oscine.types import EngineState, ModelKind


class ModelInfo(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int = Field(description="Unix seconds.")
    owned_by: str = "oscine"
    root: str | None = Field(description="The served model; None: the one that can do what a request asks for.")
    kind: ModelKind | Literal["any"]
    languages: list[str]
    takes_instructions: bool
    clones: bool
    sample_rate: int
    state: EngineState | Literal["removing"]

    @staticmethod
    def of(model: ServedModel, name: str | None = None) -> ModelInfo:
        """`name`: another name for it."""
        card = model.card
        return ModelInfo(
            id=name or card.name,
            created=model.created_s,
            root=card.name,
            kind=card.kind,
            languages=["auto", *card.languages],
            takes_instructions=card.takes_instructions,
            clones=card.clones,
            sample_rate=card.sample_rate_hz,
            state=model.state,
        )

    @staticmethod
    def of_any(models: list[ServedModel], name: str) -> ModelInfo:
        """A name that stands for whichever model can do what a request asks for."""
        infos = [ModelInfo.of(model, name) for model in models]
        languages = dict.fromkeys(language for info in infos for language in info.languages)
        return infos[0].model_copy(
            update={
                "root": None,
                "kind": "any",
                "languages": list(languages),
                "takes_instructions": any(info.takes_instructions for info in infos),
                "clones": any(info.clones for info in infos),
            }
        )


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelInfo]


def model_routes(service: Service, errors: dict[int | str, dict[str, Any]]) -> APIRouter:
    router = APIRouter(prefix="/v1/models", tags=["models"])

    def described(*statuses: int) -> dict[int | str, dict[str, Any]]:
        return {status: errors[status] for status in statuses}

    def info(name: str) -> ModelInfo:
        """Raises 404."""
        models = list(service.models)
        found = service.models.find(name) or (None if service.models.several else models[0])
        return ModelInfo.of(found, name) if found else ModelInfo.of_any(models, name)

    @router.get("", summary="Served models", responses=described(401))
    async def list_models() -> ModelList:
        """The served models, then the names that OpenAI's clients send."""
        return ModelList(data=[info(name) for name in (*(model.name for model in service.models), *OPENAI_MODELS)])

    @router.get("/{model_id:path}", summary="One model", responses=described(401, 404))
    async def get_model(model_id: str) -> ModelInfo:
        return info(model_id)

    return router
