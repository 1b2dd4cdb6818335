"""The service: one learner behind a queue, and the ways to it: HTTP (``app``) and a folder (``watch``).

Needs the extra ``serve``; the engine and the state folder need only the core.
"""
