"""The `surespan` command. Subcommands are imported when they are called, so that `surespan --help` is quick."""

from __future__ import annotations

import importlib

import click

from backend import __version__

# Name of the command -> module under backend.commands that holds it as `command`, and its line in --help. The line
# stands here because asking the module for it would import it.
_COMMANDS = {
    "accept": ("accept", "Accept the tasks that nobody needs to open, with a promise."),
    "calibrate": ("calibrate", "Load labelled files as calibration labels."),
    "connect": ("connect", "Connect a Label Studio project to this service."),
    "db": ("db", "Upgrade, check or copy the database."),
    "demo": ("demo", "Run Label Studio, the backend and two sample projects on this machine."),
    "disconnect": ("disconnect", "Undo what connect did to a project."),
    "doctor": ("doctor", "Say what is wrong with a set-up, and how to fix it."),
    "evaluate": ("evaluate", "Try every method on labelled files: tables, plots, a recommendation."),
    "export": ("export", "Write the labels that people confirmed, as CoNLL or JSONL."),
    "fit-transitions": ("fit_transitions", "Fit a checkpoint's transitions on labelled files."),
    "models": ("models", "List a project's models, and let one serve."),
    "preannotate": ("preannotate", "Predict all tasks of a project, or all texts of a file; resumable."),
    "predict": ("predict", "Show the sets of a text, or of a file of texts."),
    "queue": ("queue", "Print what to look at next, the most valuable first."),
    "recalibrate": ("recalibrate", "Refit the thresholds now."),
    "report": ("report", "Write what a project's prelabels are worth as one file."),
    "second-looks": ("second_looks", "List confirmed labels that are probably wrong."),
    "serve": ("serve", "Serve predictions to Label Studio over HTTP."),
    "simulate": ("simulate", "Play whole labelling campaigns on a labelled file: work and errors."),
    "sync": ("sync", "Bring in what Label Studio's webhooks did not deliver."),
    "train": ("train", "Train a tagger on labelled files."),
    "worker": ("worker", "Process what Label Studio sent, beside a service on PostgreSQL."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"backend.commands.{_COMMANDS[cmd_name][0]}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in sorted(_COMMANDS)])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="surespan")
def main() -> None:
    """Named entity recognition for Label Studio that says how sure it is, with a guarantee."""
