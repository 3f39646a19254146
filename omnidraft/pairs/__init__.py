"""How texts are served: conversations, their templates."""
