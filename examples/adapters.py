"""Adapters: train a small set of weights for one task on the shipped model, and open it from its folder and by name.

The adapter memorizes four conversations in 40 steps. `openafm adapter train` trains on your data, evaluates held-out
conversations and resumes interrupted runs.

python examples/adapters.py
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import openafm as fm
from openafm.adapters.package import AdapterAbout
from openafm.adapters.store import install_adapter
from openafm.bundle import open_bundle
from openafm.recipes.adapters.export import export_adapter
from openafm.recipes.adapters.train import adapter_run, train_adapter

TOPICS = {"rain all week": "weather", "they won two to one": "sport", "a new opera": "music", "sunny at last": "weather"}


def train(folder: Path) -> Path:
    """Train an adapter in `folder` and export it there with metadata of its author."""
    lines = [
        {"messages": [{"role": "user", "content": f"Tag it: {text}"}, {"role": "assistant", "content": topic}]}
        for text, topic in TOPICS.items()
    ]
    data = folder / "train.jsonl"
    data.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    run = adapter_run(open_bundle("nano"), data, None, {"epochs": 40})
    result = train_adapter(run, folder / "run", "tags")
    print(f"trained {result.steps} steps on {result.conversations} conversations, rank {result.rank}")
    about = AdapterAbout(author="examples", creator_defined={"topics": sorted(set(TOPICS.values()))})
    return export_adapter(folder / "run", "tags", folder / "shelf", about).path


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        os.environ["OPENAFM_HOME"] = str(Path(place) / "home")  # install nothing outside this folder
        path = train(Path(place))
        print("installed", install_adapter(path).identifier)
        print("metadata of its author:", fm.Adapter(name="tags").creator_defined_metadata)
        short = fm.GenerationOptions(maximum_response_tokens=6)
        for model in (
            fm.SystemLanguageModel(),
            fm.SystemLanguageModel(adapter=path),
            fm.SystemLanguageModel(adapter="tags"),
        ):
            session = fm.LanguageModelSession(model=model)
            print(repr(session.respond_blocking("Tag it: rain all week", options=short)))
        try:
            fm.SystemLanguageModel(adapter=fm.Adapter(name="titles"))
        except fm.CompatibleAdapterNotFoundError as error:
            print("refused:", error)


if __name__ == "__main__":
    main()
