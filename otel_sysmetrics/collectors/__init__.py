"""How each kind of hardware is read: one module or package per kind, loaded only when its thread probes."""
