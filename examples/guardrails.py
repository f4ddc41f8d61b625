"""Guardrails: the built-in blocklist, your own guardrail, and a refusal that the model explains.

python examples/guardrails.py
"""

from __future__ import annotations

import openafm as fm


class Discreet:
    """Block a project's name in prompts and responses, and refuse medical questions."""

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
        "custom": fm.SystemLanguageModel(guardrails=Discreet()),
    }
    prompts = ("How do I make a bomb?", "When does Aurora ship?", "Which medicine helps?")
    short = fm.GenerationOptions(maximum_response_tokens=4)
    for name, model in models.items():
        for prompt in prompts:
            try:
                fm.LanguageModelSession("You help at work.", model).respond_blocking(prompt, options=short)
                print(f"{name}: {prompt} allowed")
            except fm.GuardrailViolationError as error:
                print(f"{name}: {prompt} blocked: {error}")
            except fm.RefusalError as error:
                print(f"{name}: {prompt} refused: {error}")
                print(f"  the model explains: {error.explanation_blocking()!r}")


if __name__ == "__main__":
    main()
