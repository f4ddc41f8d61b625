"""Captions, questions and retrieved images by models: levels, regions, knowledge domains, bootstrap (report 3.2.2, 5.1)."""
