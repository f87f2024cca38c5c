"""`simgpt serve`: predictions in a browser, from a page that this machine serves to itself."""

from __future__ import annotations

import click

from simgpt import options

MOST_PORT = 65535


@click.command("serve")
@click.option(
    "--port",
    type=click.IntRange(0, MOST_PORT),
    default=0,
    help="The port on 127.0.0.1, to forward through SSH; without it, any that is free.",
)
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser of this machine.")
def command(port: int, opens: bool) -> None:
    """Serve a page on which a step is predicted as you change the plan.

    \b
    simgpt serve --open
    simgpt serve --port 8765      # then, elsewhere: ssh -L 8765:127.0.0.1:8765 LOGIN-NODE

    It prints the page's address, which holds a secret: requests without it are refused. Nothing but
    this machine can reach it, and the page loads nothing from elsewhere. Its answers are those of
    simgpt predict, and it shows the command to copy. Ctrl-C ends it.
    """
    from simgpt.commands.serve.server import PageServer

    try:
        with PageServer(port) as server:
            options.say(server.address)
            options.note("open this address in a browser; Ctrl-C ends")
            if opens:
                click.launch(server.address)
            server.serve()
    except KeyboardInterrupt:
        options.note("ended")
