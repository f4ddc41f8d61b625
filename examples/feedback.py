"""Feedback: a conversation, its issues and the desired response, as JSON for the training of the model.

python examples/feedback.py
"""

from __future__ import annotations

import json

import openafm as fm


@fm.generable
class Review:
    stars: int = fm.guide(range=(1, 5))
    mood: str = fm.guide(anyOf=["happy", "sad", "neutral"])


def main() -> None:
    session = fm.LanguageModelSession("Judge reviews.")
    review = session.respond_blocking("Lovely place, slow waiters.", generating=Review)
    print("the model:", review)

    feedback = session.log_feedback(
        fm.Sentiment.NEGATIVE,
        [fm.FeedbackIssue(fm.FeedbackCategory.INCORRECT, "It is not that bad.")],
        desired_output=fm.GeneratedContent.of(Review(stars=4, mood="happy")).to_json(),
    )
    fields = json.loads(feedback)
    print(len(feedback), "bytes:", ", ".join(fields))
    print(fields["sentiment"], fields["issues"])


if __name__ == "__main__":
    main()
