"""The report of finished runs: what they say in words, further tables, and the page."""
