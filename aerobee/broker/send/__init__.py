"""Messages that come in, when the lane leaves them: sends, send-backs, replies, and what is checked of them."""
