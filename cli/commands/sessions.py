"""`harness sessions`: conversations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from cli.commands.arguments import AgentId, ConversationId, Json
from cli.execute import execute

if TYPE_CHECKING:
    from cli.api import Api
    from cli.output import Output

app = typer.Typer(help="Clear conversations.", no_args_is_help=True)


@app.command("clear")
def clear(agent_id: AgentId, conversation_id: ConversationId, as_json: Json = False) -> None:
    """Clear a conversation: its runs are cancelled, what was said is forgotten, the next turn uses the agent's current version."""

    async def work(api: Api, output: Output) -> int:
        data = await api.post("/api/v1/sessions/clear", {"agent_id": agent_id, "conversation_id": conversation_id})
        if output.as_json:
            output.document(data)
        elif data["cleared"]:
            output.say(f"{conversation_id} is cleared; its next turn begins epoch {data['next_epoch']}.")
        else:
            output.say(f"{conversation_id} was not used since its last clear: nothing to do.")
        return 0

    execute(work, as_json=as_json)
