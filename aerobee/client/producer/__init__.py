"""Producers: sends, transactions, requests and their replies."""
