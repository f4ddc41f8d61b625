"""The models of a server: bundles and their installed adapters by name, loaded on first use, released when idle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from openafm.adapters.store import installed_adapters
from openafm.bundle import Bundle, list_bundles, open_bundle, resolve_model, shipped_bundle
from openafm.bundle.files import PAGES_ADAPTER
from openafm.core.config import nearest
from openafm.framework.backends import loaded_model
from openafm.framework.backends.adapter import resolve_adapter
from openafm.framework.backends.loaded_model import LoadedModel
from openafm.framework.backends.system_model import SystemLanguageModel
from openafm.runtime.engines.selection import adapter_bytes, engine_name, kv_bytes_per_token, vision_bytes
from openafm.serving.admission import SharedMemory
from openafm.serving.errors import ApiError


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """Describe a bundle, or a bundle with an adapter. `name` is the id in requests: BUNDLE or BUNDLE:ADAPTER."""

    name: str
    bundle: Bundle
    adapter: str | None = None

    @cached_property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values for each token."""
        return kv_bytes_per_token(self.bundle, engine_name(self.bundle))

    @cached_property
    def draft(self) -> Bundle | None:
        """The adapter's draft model, if it has one. Reads files.

        Raises:
            AssetError: the adapter is missing or damaged.
        """
        folder = None if self.adapter is None else resolve_adapter(self.adapter, self.bundle).draft
        return None if folder is None else open_bundle(folder)

    @property
    def answer_bytes_per_token(self) -> int:
        """Bytes of keys and values for each token of an answer, those of the draft model included. Reads files.

        Raises:
            AssetError: the adapter is missing or damaged.
        """
        drafted = 0 if self.draft is None else kv_bytes_per_token(self.draft, engine_name(self.draft))
        return self.kv_bytes_per_token + drafted

    @property
    def base(self) -> ServedModel:
        """The bundle without the adapter."""
        return self if self.adapter is None else ServedModel(name=self.bundle.name, bundle=self.bundle)

    @property
    def created(self) -> int:
        """Time of the bundle's config file, in seconds."""
        return int((self.bundle.path / "config.json").stat().st_mtime)


class ModelCatalog:
    """Find models by name and load them. Used by the thread of the event loop.

    Args:
        names: names or paths of the served bundles, the default first; empty: all bundles of this machine.
        idle_seconds: release a model without uses for this long; 0: never.

    Raises:
        BundleNotFoundError, BundleError: a bundle is missing or damaged.
        NotGenerativeError: a named bundle generates no text. Unnamed ones are left out.
    """

    def __init__(self, names: Sequence[str], idle_seconds: float = 0.0) -> None:
        found = [open_bundle(name) for name in names] or _all_bundles()
        for bundle in found:
            bundle.check_generates()
        self._bundles = {bundle.name: ServedModel(name=bundle.name, bundle=bundle) for bundle in found}
        self.default = found[0].name
        self._idle_seconds = idle_seconds
        self._loaded: dict[str, LoadedModel] = {}
        self._last_used: dict[str, float] = {}
        self._num_users: dict[str, int] = {}
        self._loading = asyncio.Lock()

    def served(self) -> list[ServedModel]:
        """Return all bundles, each followed by its adapters: those that are installed for it, and its own for images."""
        models = []
        for name, model in self._bundles.items():
            models.append(model)
            folders = installed_adapters()
            adapters = {path.parent.name for path in folders if path.name.endswith(f"-{model.bundle.signature[:7]}")}
            if model.bundle.pages_adapter is not None:
                adapters.add(PAGES_ADAPTER)
            models += [ServedModel(name=f"{name}:{each}", bundle=model.bundle, adapter=each) for each in sorted(adapters)]
        return models

    def find(self, name: str | None) -> ServedModel:
        """Return a model by name. None and `default` select the default, and `NAME:latest` is NAME.

        Raises:
            ApiError: the name is unknown; the message has the nearest one.
        """
        name = (name or "").removesuffix(":latest")
        if name in ("", "default"):
            name = self.default
        if name in self._bundles:  # without a look at the folders of adapters
            return self._bundles[name]
        models = {model.name: model for model in self.served()}
        if name not in models:
            hint = nearest(name[:200], list(models))
            raise ApiError(404, f"the model '{name[:200]}' does not exist{hint}", code="model_not_found", param="model")
        return models[name]

    @property
    def is_ready(self) -> bool:
        """True once the default model has been loaded."""
        return self.default in self._last_used

    @property
    def num_loaded(self) -> int:
        return len(self._loaded)

    def is_loaded(self, name: str) -> bool:
        return name in self._loaded

    async def acquire(self, model: ServedModel) -> LoadedModel:
        """Return the loaded model, and keep it loaded until `release`.

        Raises:
            AssetsUnavailableError, AssetError: the model cannot be loaded.
        """
        self._num_users[model.name] = self._num_users.get(model.name, 0) + 1
        try:
            async with self._loading:
                if model.name not in self._loaded:
                    described = SystemLanguageModel(bundle=model.bundle.path, adapter=model.adapter)
                    self._loaded[model.name] = await asyncio.to_thread(described.load)
                return self._loaded[model.name]
        except BaseException:
            self.release(model)
            raise

    def shared_memory(self, model: ServedModel, sees: bool) -> list[SharedMemory]:
        """Return the memory of a model that requests share: of its adapter with the draft model and, if it `sees`, of the
        vision encoder.

        Raises:
            AssetError: the adapter is missing or damaged.
        """
        engine, shared = engine_name(model.bundle), list[SharedMemory]()
        if model.adapter is not None:
            num_bytes = adapter_bytes(resolve_adapter(model.adapter, model.bundle), engine)
            num_bytes += 0 if model.draft is None else _stored_bytes(model.draft)
            free = partial(self.drop, model.name)
            shared.append(SharedMemory(key=model.name, name="its adapter", num_bytes=num_bytes, free=free))
        if sees and (num_bytes := vision_bytes(model.bundle, engine)):
            key, free = _vision_key(model.bundle), partial(self._release_vision, model.bundle.name)
            shared.append(SharedMemory(key=key, name="the vision encoder", num_bytes=num_bytes, free=free))
        return shared

    def memory_keys(self) -> set[str]:
        """Return the keys of the shared memory that loaded models may hold."""
        return self._loaded.keys() | {_vision_key(each.bundle) for each in self._loaded.values()}

    @property
    def cached_bytes(self) -> int:
        """Bytes of the stored prefixes and embeddings of all loaded models."""
        return sum(each.cached_bytes for each in self._loaded.values())

    def free_cached(self, num_bytes: int) -> None:
        """Free at least `num_bytes` if the caches hold as much, those of the least recently used models first."""
        for name in sorted(self._loaded, key=lambda name: self._last_used.get(name, 0.0)):
            num_bytes -= self._loaded[name].free_cached(num_bytes)

    def _release_vision(self, bundle: str) -> None:
        for each in self._loaded.values():
            if each.bundle.name == bundle:
                each.engine.release_vision()

    def release(self, model: ServedModel) -> None:
        """End a use."""
        self._num_users[model.name] -= 1
        self._last_used[model.name] = time.monotonic()

    def unload(self, model: ServedModel) -> bool:
        """Drop a model that no request uses. Return whether it is gone."""
        if self._num_users.get(model.name):
            return False
        self.drop(model.name)
        return True

    def release_idle(self) -> list[str]:
        """Drop models without a use for `idle_seconds`, and return their names."""
        now = time.monotonic()
        idle = [
            name
            for name in self._loaded
            if self._idle_seconds and not self._num_users[name] and now - self._last_used[name] >= self._idle_seconds
        ]
        for name in idle:
            self.drop(name)
        return idle

    def drop(self, name: str) -> None:
        """Release a model, if it is loaded. Requests that use it keep it until they end."""
        if (loaded := self._loaded.pop(name, None)) is not None:
            loaded_model.release(loaded)


def _stored_bytes(bundle: Bundle) -> int:
    return sum(path.stat().st_size for path in bundle.path.glob("*.safetensors"))


def _vision_key(bundle: Bundle) -> str:
    return f"{bundle.name} sees"  # no model's name


def _all_bundles() -> list[Bundle]:
    """Return the bundles of this machine that generate text, the default first."""
    default = resolve_model()
    others = [folder for folder in (*list_bundles(), shipped_bundle()) if folder is not None]
    folders = [default, *(folder for folder in others if folder.resolve() != default.resolve())]
    return [bundle for bundle in map(open_bundle, folders) if bundle.config.generates_text]
