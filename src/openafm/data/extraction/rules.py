"""Extraction rules by domain, as data: elements that must be around a block, and elements that remove what is below them."""

from __future__ import annotations

import importlib.resources
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from openafm.core.config import ConfigError
from openafm.data.extraction.blocks import PageBlocks

_KEYS = frozenset(("keep", "drop"))


@dataclass(frozen=True, kw_only=True)
class DomainRule:
    """Class names and ids of one domain. An empty `keep` keeps what the classifier chooses."""

    keep: frozenset[str] = frozenset()
    drop: frozenset[str] = frozenset()


def read_rules(path: str = "") -> Mapping[str, DomainRule]:
    """Return the rules of a TOML file by domain, or those of the package without a path.

    Raises:
        ConfigError: the file is absent, is not TOML, or holds an unknown key.
    """
    name = path or "rules.toml"
    try:
        if path:
            text = Path(path).read_text("utf-8")
        else:
            text = importlib.resources.files("openafm.data.extraction").joinpath("rules.toml").read_text("utf-8")
        tables = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read the extraction rules '{name}': {error}") from error
    return {domain.lower(): _rule(name, domain, table) for domain, table in tables.items()}


def rule_for(url: str, rules: Mapping[str, DomainRule]) -> DomainRule | None:
    """Return the rule of the longest domain that matches the host of a URL."""
    if not any(domain in url.lower() for domain in rules):
        return None
    try:
        labels = (urlsplit(url).hostname or "").split(".")
    except ValueError:
        return None
    return next((rules[domain] for start in range(len(labels)) if (domain := ".".join(labels[start:])) in rules), None)


def apply_rule(rule: DomainRule, page: PageBlocks, chosen: Sequence[bool]) -> list[bool]:
    """Return the choice of blocks after a rule. If no block is below an element of `keep`, `keep` is ignored."""
    inside_keep, inside_drop = [False], [False]
    containers = page.containers
    for parent, joined in zip(containers.parents[1:], containers.names[1:], strict=True):
        names = set(joined.split())
        inside_keep.append(inside_keep[parent] or bool(names & rule.keep))
        inside_drop.append(inside_drop[parent] or bool(names & rule.drop))
    places = page.container_of.tolist()
    kept = [inside_keep[container] for container in places]
    base = kept if any(kept) else list(chosen)
    return [keep and not inside_drop[container] for keep, container in zip(base, places, strict=True)]


def _rule(path: str, domain: str, table: Any) -> DomainRule:
    if not isinstance(table, dict) or not set(table) <= _KEYS:
        raise ConfigError(f"the extraction rules '{path}' for '{domain}' must be a table with 'keep' and 'drop'")
    for key, value in table.items():
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise ConfigError(f"the extraction rules '{path}' for '{domain}': '{key}' must be a list of class names and ids")
    return DomainRule(keep=frozenset(table.get("keep", ())), drop=frozenset(table.get("drop", ())))
