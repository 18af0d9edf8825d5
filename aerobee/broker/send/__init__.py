"""Messages that come in, when the fast path leaves them: sends, send-backs, replies, and what is checked of them."""
