"""Statistics of grading: intervals, ratings, agreement, graders, and the report of a project."""
