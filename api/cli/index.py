"""Where each command is: its module, which is imported when the command is named, and its panel.

A command that is not here works too, and starts slower: every module is searched for it.
"""

from __future__ import annotations

MODULES = {
    "accept": "deciding",
    "adopt": "adopting",
    "commands": "working",
    "dead-letters": "lanes",
    "dispatch": "dispatching",
    "drill": "drilling",
    "engine": "engine",
    "evidence": "evidence",
    "gaps": "looking",
    "history": "looking",
    "import": "deciding",
    "lanes": "lanes",
    "migrate": "migrating",
    "move": "moving",
    "observations": "tracing",
    "operations": "ledger",
    "recover": "recovering",
    "recover abandon": "abandoning",
    "recover findings": "reconciling",
    "recover reconcile": "reconciling",
    "recover reopen": "reopening",
    "recover report": "reporting",
    "releases": "working",
    "restore": "snapshots",
    "resume": "stopping",
    "serve": "serving",
    "snapshot": "snapshots",
    "status": "looking",
    "stop": "stopping",
    "stops": "stopping",
    "sweep": "lanes",
    "tenant": "tenants",
    "token": "tokens",
    "verify": "looking",
    "where": "tracing",
    "witness": "witnessing",
}

PANELS = {
    "Decisions": ["serve", "token", "accept", "import", "adopt"],
    "Effects": [
        "releases",
        "commands",
        "lanes",
        "dead-letters",
        "dispatch",
        "sweep",
        "stop",
        "resume",
        "stops",
    ],
    "Looking": ["status", "gaps", "history", "where", "operations", "observations", "verify"],
    "Tenants": ["tenant", "move", "engine"],
    "Upgrading": ["migrate"],
    "After a rewind": ["snapshot", "restore", "recover", "evidence", "drill"],
}
