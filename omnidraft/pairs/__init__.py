"""Pairs of models to use: texts, chats, and proposals for other engines."""
