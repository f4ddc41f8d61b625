"""Speculative decoding: a draft model proposes tokens, and the model checks several per step. The answer is the same.

The draft length adapts while the model answers: the first answer drafts few tokens or none.

python examples/speculation.py             # the shipped model as its own draft model, which saves no time
python examples/speculation.py my_draft    # a draft model: `openafm adapter draft-train`, recipe on_device.draft
"""

from __future__ import annotations

import sys

import openafm as fm


@fm.generable
class Contact:
    name: str = fm.guide(regex="[A-Z][a-z]{2,10} [A-Z][a-z]{2,10}")
    phone: str = fm.guide(regex=r"\+[0-9]{11}")


def main(draft: str = "nano") -> None:
    contents = []
    for model in (fm.SystemLanguageModel(), fm.SystemLanguageModel(draft=draft)):
        session = fm.LanguageModelSession("Extract the contact.", model)
        response = session.respond_full_blocking("Ana Conti, +39 06 5551 1234", generating=Contact)
        usage = response.usage
        print(f"{usage.model_steps:3} steps for {usage.generated_tokens} tokens,", end=" ")
        print(f"{usage.accepted_tokens} of {usage.drafted_tokens} drafted tokens accepted: {response.content}")
        contents.append(response.content)
    assert contents[0] == contents[1]


if __name__ == "__main__":
    main(*sys.argv[1:])
