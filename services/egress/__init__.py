"""The model egress: the one way out of a sandbox to a model (sandbox worker protocol, "What a worker never receives").

Decides which requests of which runs pass, and puts the operator's credential in. Owns no record; asks sessions whether a run still holds its
conversation. Entry: `python -m services.egress`. May use `services.common`, nothing of another service.
"""
