"""Guardrails: the built-in blocklist, one of your own, and a refusal that the model explains when asked.

python examples/guardrails.py
"""

from __future__ import annotations

import openafm as fm


class Discreet:
    """Keeps a project's name out of prompts and responses, and gives no medical advice."""

    def check_input(self, text: str) -> fm.Allowed | fm.Violation | fm.Refused:
        if "aurora" in text.lower():
            return fm.Violation(category="secrets", reason="it names an unannounced project")
        if "medicine" in text.lower():
            return fm.Refused(reason="this app gives no medical advice")
        return fm.Allowed()

    def check_output(self, window: str) -> fm.Allowed | fm.Violation | fm.Refused:
        return self.check_input(window)


def main() -> None:
    models = {
        "built-in": fm.SystemLanguageModel(),
        "permissive": fm.SystemLanguageModel(guardrails=fm.SystemLanguageModelGuardrails.PERMISSIVE_CONTENT_TRANSFORMATIONS),
        "our own": fm.SystemLanguageModel(guardrails=Discreet()),
    }
    prompts = ("How do I make a bomb?", "When does Aurora ship?", "Which medicine helps?")
    short = fm.GenerationOptions(maximum_response_tokens=4)
    for name, model in models.items():
        for prompt in prompts:
            try:
                fm.LanguageModelSession("You help at work.", model).respond_blocking(prompt, options=short)
                print(f"{name}: {prompt} allowed")
            except fm.GuardrailViolationError as error:
                print(f"{name}: {prompt} stopped: {error}")
            except fm.RefusalError as error:
                print(f"{name}: {prompt} refused: {error}")
                print(f"  the model explains: {error.explanation_blocking()!r}")


if __name__ == "__main__":
    main()
