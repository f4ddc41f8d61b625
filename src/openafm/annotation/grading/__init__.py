"""Side-by-side grading (report section 8): people or a judge model compare two systems' answers without their names."""
