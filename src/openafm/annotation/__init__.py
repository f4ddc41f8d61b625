"""People teach and judge: tool-use annotation (report section 5.3) and side-by-side grading (section 8)."""
