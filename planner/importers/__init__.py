"""Existing configurations of training frameworks, read as plans: nothing is guessed in silence."""
