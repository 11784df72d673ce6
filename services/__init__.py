"""The control plane: one package per service, started as `python -m services.<name>`.

Services reach each other only over gRPC, by generated stubs, and never import each other; what two or more of them need
is in `services.common`. Inside a service calls go one way: `service.py` (the servicer: translate, call, translate back),
then domain modules (pure, each named for what it decides), then `store.py` (what it needs kept).
"""
