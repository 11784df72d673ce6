"""Credentials from the environment reach the process that the operator file gives them to, and no other (I28)."""

from pathlib import Path

from cli.mesh.layout import layout_of
from cli.mesh.operator_file import named_variables, names_model_endpoints
from cli.mesh.plan import Options, plan
from cli.mesh.secrets import secret_files

FILE = """
version: 1
adapters:
  - {harness_id: toy, address: "unix:a.sock", token_env: TOY_TOKEN, profiles: []}
tools:
  - {id: stock, provider: "127.0.0.1:1", token_env: STOCK_TOKEN}
  - {id: clock, provider: builtin}
model_endpoints:
  - {id: claude, kind: anthropic, credential_env: MODEL_KEY}
"""
CANARIES = {name: f"canary-{name}" for name in ("TOY_TOKEN", "STOCK_TOKEN", "MODEL_KEY", "OTHER_KEY")}


def test_i28_a_variable_reaches_whom_the_file_names_it_for(tmp_path: Path) -> None:
    config = tmp_path / "harness.yaml"
    config.write_text(FILE)
    tokens, credentials = named_variables(config)
    layout = layout_of(tmp_path / "data")
    layout.create()
    options = Options(
        "127.0.0.1",
        0,
        config,
        [],
        ["bus"],
        token_variables=tokens,
        credential_variables=credentials,
        model_egress=names_model_endpoints(config),
        environment=CANARIES,
    )
    given = {
        component.name: {name for name in CANARIES if name in component.environment}
        for component in plan(layout, secret_files(layout.secrets), options)
    }
    assert {name: variables for name, variables in given.items() if variables} == {
        "catalog": {"TOY_TOKEN", "STOCK_TOKEN"},
        "egress": {"MODEL_KEY"},
    }
