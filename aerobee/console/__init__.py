"""A console in the browser: looks at a cluster and changes it through the admin client only. Needs the extra `metrics` (aiohttp)."""
