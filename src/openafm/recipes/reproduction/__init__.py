"""The whole report in one command: existing verbs as stages, and our figures beside its own (`openafm reproduce`)."""
