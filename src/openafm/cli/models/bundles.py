"""`openafm show`, `openafm use` and `openafm rm`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from openafm.cli.options import PluginsOption
from openafm.cli.output import JsonOption, human_bytes, human_number, print_json, print_table, print_text
from openafm.core.errors import UsageError

if TYPE_CHECKING:
    from openafm.bundle import Bundle
    from openafm.bundle.describe import Description


def inspect(
    name: Annotated[str, typer.Argument(help="Bundle by name or path, or a named size such as on_device.base.")],
    plugins: PluginsOption = None,
    json: JsonOption = False,
) -> None:
    """Verify and describe a bundle, or describe a named size without weights."""
    from openafm.bundle import open_bundle
    from openafm.bundle.describe import describe_bundle, describe_size
    from openafm.models.sizes import SIZES

    if name in SIZES:
        description, here = describe_size(name), {}
    else:
        bundle = open_bundle(name)
        description = describe_bundle(bundle)
        here = _memory_here(bundle, description)
    if json:
        print_json(description.to_dict() | here)
        return
    rows = _rows(description)
    if here:
        weights, kv = (human_bytes(here[f"engine_{part}"]) for part in ("weight_bytes", "kv_bytes_per_token"))
        rows.append(("memory here", f"{weights} of weights, {kv} of KV cache per token, {here['engine']} engine"))
    print_table((description.name, ""), rows)


def _memory_here(bundle: Bundle, description: Description) -> dict[str, Any]:
    """Return the engine of this machine for a bundle, the bytes of its weights, and of its KV cache for a token."""
    from openafm.runtime.engines.selection import engine_name, kv_bytes_per_token, weight_bytes

    engine = engine_name(bundle)
    return {
        "engine": engine,
        "engine_weight_bytes": weight_bytes(bundle, description.parameters, description.bits_per_weight, engine),
        "engine_kv_bytes_per_token": kv_bytes_per_token(bundle, engine),
    }


def use(
    name: Annotated[str | None, typer.Argument(help="Bundle to make the current model, by name or path.")] = None,
    json: JsonOption = False,
) -> None:
    """Set the current model, which commands use by default. Without NAME, list the bundles on this machine."""
    from openafm.bundle import choose_model, open_bundle

    if name is None:
        _list_bundles(json)
        return
    bundle = open_bundle(name)
    bundle.verify()
    chosen = choose_model(bundle.path)
    print_json({"bundle": str(chosen)}) if json else print_text(f"the current model is {chosen.name} ({chosen})")


def _list_bundles(json: bool) -> None:
    from openafm.bundle import BundleNotFoundError, list_bundles, resolve_model, shipped_bundle

    try:
        answering = resolve_model()
    except BundleNotFoundError:
        answering = None
    found = [(path, "local") for path in list_bundles()]
    if (shipped := shipped_bundle()) is not None:
        found.append((shipped, "shipped"))
    listing = [{"name": p.name, "from": origin, "path": str(p), "answers": p == answering} for p, origin in found]
    if json:
        print_json(listing)
    else:
        rows = [(b["name"], "*" if b["answers"] else "", b["from"], b["path"]) for b in listing]
        print_table(("name", "current", "from", "path"), rows)


def remove(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Bundles of this user, by name.")],
    json: JsonOption = False,
) -> None:
    """Remove bundles from this machine. The shipped model is part of the package and stays."""
    from openafm.bundle.store import remove_bundle

    removed = [str(remove_bundle(name)) for name in names]
    print_json({"removed": removed}) if json else print_text("\n".join(f"removed {path}" for path in removed))


def check_name_is_free(name: str, force: bool) -> None:
    """Check that a new bundle would neither replace a bundle nor hide the shipped one.

    Raises:
        UsageError: it would, and `force` is False.
    """
    from openafm.bundle import bundle_place, shipped_bundle

    if force:
        return
    place, shipped = bundle_place(name), shipped_bundle()
    if place.exists():
        raise UsageError(f"the bundle '{name}' exists ({place}); choose another --name, or replace it with --force")
    if shipped is not None and shipped.name == name:
        raise UsageError(
            f"'{name}' is the shipped model, which the new bundle would hide; choose another --name, or --force"
        )


def _rows(about: Description) -> list[tuple[str, str]]:
    """Return the facts of a model for people; `--json` has all of them as numbers."""
    active = "" if about.active_parameters == about.parameters else f", {human_number(about.active_parameters)} per token"
    sharing = f", {about.sharing_layers} share keys and values" if about.sharing_layers else ""
    local = f", {about.local_layers} with a window of {about.window:,}" if about.local_layers and about.window else ""
    adapter = f", {about.adapter_bits_per_weight:.2f} of them the adapter's" if about.adapter_bits_per_weight else ""
    size = human_bytes(about.bits_per_weight * about.parameters / 8)
    rows = [
        ("parameters", human_number(about.parameters) + active),
        ("layers", f"{about.layers}{sharing}{local}"),
        ("dim", f"{about.dim:,}"),
    ]
    if about.tracks > 1:
        rows.append(("tracks", f"{about.tracks}, synchronized every {about.block_depth} layers"))
    if about.expert_layers:
        experts = f"{about.experts_per_track} per track, {about.experts_per_token} per token"
        rows.append(("experts", f"{experts}, in {about.expert_layers} layers"))
    rows += [
        ("vocabulary", f"{about.vocab_size:,} tokens"),
        ("context", f"{about.context_length:,} tokens"),
        ("size", f"{size}, {about.bits_per_weight:.2f} bits per weight{adapter}"),
        ("numerics", f"weights {about.weights}, embedding {about.embedding}"),
        ("", f"activations {about.activations}, KV cache {about.kv}"),
        (
            "KV cache",
            f"{human_bytes(about.kv_bytes_per_token)} per token, {human_bytes(about.kv_bytes_at_4096)} at 4,096 tokens",
        ),
        ("compute", f"{human_number(about.flops_per_token_at_4096)}FLOP per token at 4,096 tokens"),
    ]
    if about.vision is not None:
        parts = about.vision.encoder_parameters, about.vision.adapter_parameters
        rows.append(("vision", "{} encoder, {} adapter".format(*map(human_number, parts))))
        for name, image in about.vision.modes.items():
            views = f"{image.views} views of {image.side} pixels" if image.views > 1 else f"{image.side} pixels"
            cost = f"{human_number(image.flops)}FLOP, {human_bytes(image.kv_bytes)} of KV cache"
            rows.append((f"image, {name}", f"{image.tokens} tokens, {views}, {cost}"))
    if about.reader_bytes:
        rows.append(("images", f"their text, by a reader of pages of {human_bytes(about.reader_bytes)}"))
    if about.ranker_bytes:
        rows.append(("answers", f"labels, tools and values, with rankers of {human_bytes(about.ranker_bytes)}"))
    if about.signature is not None:
        rows.append(("signature", f"{about.signature} (verified)"))
    if about.path is not None:
        rows.append(("path", about.path))
    return rows
