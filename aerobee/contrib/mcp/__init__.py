"""A server of the Model Context Protocol for operators' assistants, `aerobee mcp`; needs the extra mcp.

server.py     makes the server of the official SDK: instructions, tools, errors, deadlines
reads.py      tools that read: cluster, topics, groups, messages, dead letters, schedules
actions.py    tools that change: a dry run gives a plan, and apply_plan carries it out
plans.py      plans between their dry run and their execution
answers.py    bounded answers, and texts of clients marked as untrusted
http.py       streamable HTTP on loopback, or with a token
"""
