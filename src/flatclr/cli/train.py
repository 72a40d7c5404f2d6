"""`flatclr train`"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatclr.cli.doctor import tell
from flatclr.cli.options import OUTPUT, SETTINGS, option_of, parsed_setting, settings_without_option
from flatclr.data.halves import HALVES
from flatclr.data.sources import Dataset
from flatclr.doctor import examine
from flatclr.report.page import write_report
from flatclr.report.pictures import refresh_pictures
from flatclr.report.serving import watched_beside
from flatclr.training.config import TrainConfig
from flatclr.training.errors import TrainingInterruptedError
from flatclr.training.events import Event, Progressed, Started, Warned
from flatclr.training.launch import process_group
from flatclr.training.recipes import RECIPES
from flatclr.training.result import RunResult
from flatclr.training.stopping import RESUME_ME, StopRequest
from flatclr.training.trainer import train

if TYPE_CHECKING:
    from flatclr.training.display import Display, JsonLines

Option = typer.Option
START = "Start"
FLAGS = {"halves": "views-per-image"}  # of settings that an option of another name gives


def train_command(
    recipe: Annotated[
        str | None,
        Option(
            help=f"Start from the settings of a recipe: {', '.join(RECIPES)}; 'list' describes them.",
            rich_help_panel=START,
        ),
    ] = None,
    resume: Annotated[
        str | None,
        Option(
            help="Go on with the run in this directory, with its own settings; --epochs +5 makes it 5 longer, and "
            "--max-bad-images may be another.",
            rich_help_panel=START,
        ),
    ] = None,
    auto_resume: Annotated[
        bool,
        Option(
            "--auto-resume",
            help="Go on with the run that --out holds, if it holds one: the same command begins a run and goes on with "
            "it.",
            rich_help_panel=START,
        ),
    ] = False,
    data: Annotated[str | None, option_of("data")] = None,
    data_dir: Annotated[str | None, option_of("data_dir")] = None,
    labels: Annotated[str | None, option_of("labels")] = None,
    image_size: Annotated[int | None, option_of("image_size")] = None,
    max_bad_images: Annotated[float | None, option_of("max_bad_images")] = None,
    views_per_image: Annotated[
        str | None,
        Option(
            "--views-per-image",
            "--views",
            metavar="NUMBER|halves",
            help="How many views of each image a step compares; halves or halves:left-right: its halves as they are.",
            rich_help_panel="Data",
            show_default="2",
        ),
    ] = None,
    positives: Annotated[str | None, option_of("positives")] = None,
    view_size: Annotated[int | None, option_of("view_size")] = None,
    encoder: Annotated[str | None, option_of("encoder")] = None,
    towers: Annotated[str | None, option_of("towers")] = None,
    init: Annotated[str | None, option_of("init")] = None,
    objective: Annotated[str | None, option_of("objective")] = None,
    ess_target: Annotated[
        str | None,
        Option(
            help="The effective sample size of the negatives to hold; 0:0.5,20:0.2 goes from 0.5 to 0.2 by epoch 20.",
            rich_help_panel="Objective",
            show_default=str(SETTINGS["ess_target"].default),
        ),
    ] = None,
    temperature: Annotated[float | None, option_of("temperature")] = None,
    batch_size: Annotated[int | None, option_of("batch_size")] = None,
    micro_batch: Annotated[int | None, option_of("micro_batch")] = None,
    epochs: Annotated[
        str | None,
        Option(
            help="How many passes over the data; with --resume, +5 makes the run 5 longer.",
            rich_help_panel="Optimisation",
            show_default=f"{SETTINGS['epochs'].default:g}",
        ),
    ] = None,
    steps: Annotated[int | None, option_of("steps")] = None,
    optimizer: Annotated[str | None, option_of("optimizer")] = None,
    learning_rate: Annotated[float | None, option_of("learning_rate")] = None,
    seed: Annotated[int | None, option_of("seed")] = None,
    precision: Annotated[str | None, option_of("precision")] = None,
    graph: Annotated[bool | None, option_of("graph")] = None,
    device: Annotated[str | None, option_of("device")] = None,
    out: Annotated[str | None, option_of("out")] = None,
    log_every: Annotated[int | None, option_of("log_every")] = None,
    eval_every: Annotated[int | None, option_of("eval_every")] = None,
    checkpoint_every: Annotated[int | None, option_of("checkpoint_every")] = None,
    keep_checkpoints: Annotated[str | None, option_of("keep_checkpoints")] = None,
    probe_every: Annotated[int | None, option_of("probe_every")] = None,
    wandb: Annotated[str | None, option_of("wandb")] = None,
    watch: Annotated[
        bool,
        Option("--watch", help="Serve the page of the run while it goes on, as flatclr watch.", rich_help_panel=OUTPUT),
    ] = False,
    as_json: Annotated[
        bool,
        Option("--json", help="Print one JSON line per event instead of the display.", rich_help_panel=OUTPUT),
    ] = False,
    quiet: Annotated[
        bool,
        Option("--quiet", "-q", help="Print only where the encoder and the report are.", rich_help_panel=OUTPUT),
    ] = False,
    setting: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME=VALUE",
            help="Change any other setting, with a YAML value; may be repeated. "
            f"The others are {settings_without_option(train_command)}.",
            rich_help_panel="Other settings",
        ),
    ] = None,
) -> None:
    """Train an encoder without labels and write a run directory.

    Defaults are those without a recipe; a recipe has its own. Asked by SIGTERM, SIGUSR1, SIGHUP or Ctrl-C to stop, a
    run writes a checkpoint and ends with exit code 75: it can go on.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    for name in ("recipe", "resume", "auto_resume", "setting", "watch", "as_json", "quiet"):
        given.pop(name, None)
    if recipe == "list":
        for name, make in RECIPES.items():
            print(f"{name:<18} {(make.__doc__ or '').strip().splitlines()[0] if make.__doc__ else ''}")
        return
    if ess_target is not None:
        given["ess_target"] = _targets(ess_target)
    if views_per_image is not None:
        given |= _views(given.pop("views_per_image"))
    given |= dict(parsed_setting(text) for text in setting or [])
    for one, other in (("temperature", "ess_target"), ("steps", "epochs")):
        if given.get(one) is not None and given.get(other) is not None:
            flags = [f"--{name.replace('_', '-')}" for name in (one, other)]
            raise ValueError(f"only one of {' and '.join(flags)} must be given, got both; leave one out.")
    longer = None if epochs is None or not epochs.startswith("+") else _number("--epochs", epochs)
    if longer is not None:
        given.pop("epochs")
        if resume is None:
            raise ValueError(f"--epochs {epochs} must go with --resume, got none; name the run to make longer.")
    elif epochs is not None:
        given["epochs"] = _number("--epochs", epochs)
    if resume == "":
        raise ValueError("--resume must name a run directory, got ''; pass one, or leave it out.")
    allowed = given.pop("max_bad_images", None) if resume is not None else None
    if resume is not None and given:
        raise ValueError(
            f"--resume must stand alone but for --epochs +N and --max-bad-images, got {_flags(given, setting)} "
            "too; leave that out, a run goes on with its own settings, and --epochs +5 makes it 5 longer."
        )
    config = _recipe(recipe).changed(**given) if resume is None else TrainConfig()

    from flatclr.training.display import Display, JsonLines

    stop, started = StopRequest(), _Start(watch)
    rank = 0
    try:
        with (
            stop.on_signals(),
            process_group() as ranks,
            JsonLines(quiet=ranks.rank != 0) if as_json else Display(quiet=ranks.rank != 0, brief=quiet) as display,
        ):
            rank, started.display = ranks.rank, display
            result = train(
                config,
                resume=resume,
                auto_resume=auto_resume,
                max_bad_images=allowed,
                extend_epochs=longer,
                progress=False,
                on_event=[display, started],
                stop=stop,
            )
            if rank == 0:
                tell(examine(result), display, result.path)
                _write_page(result, started, display)
    except TrainingInterruptedError:
        if rank == 0:
            raise
        raise typer.Exit(RESUME_ME) from None  # the first process says it for all


class _Start:
    """Remembers what a run is trained on, so that its page need not open it again, and has the run watched if asked."""

    data: Dataset | None = None
    display: Display | JsonLines | None = None

    def __init__(self, watch: bool) -> None:
        self.watch = watch

    def __call__(self, event: Event) -> None:
        if not isinstance(event, Started):
            return
        self.data = event.data
        if self.watch and event.run is not None and self.display is not None:
            try:
                self.display.watched(watched_beside(event.run))
            except RuntimeError as error:  # the run is worth more than its page
                self.display(Warned(0, str(error)))


def _write_page(result: RunResult, started: _Start, display: Display | JsonLines) -> None:
    """The page of a run that has ended; without what it takes, the run is whole all the same."""

    def progress(what: str, done: int, total: int) -> None:
        display(Progressed(result.steps, f"report, {what}", done, total))

    try:
        note = refresh_pictures(result.path, started.data, progress=progress)
        display.report(write_report(result.path, pictures_note=note))
    except ImportError as error:
        message = f"{str(error).rstrip('.')}, then write the page with: flatclr report {result.path}"
        display(Warned(result.steps, message))


def _flags(given: Iterable[str], setting: Iterable[str] | None) -> str:
    """The settings as the command line has them."""
    of_set = {parsed_setting(text)[0] for text in setting or []}
    return ", ".join(f"--set {n}" if n in of_set else f"--{FLAGS.get(n, n).replace('_', '-')}" for n in given)


def _recipe(name: str | None) -> TrainConfig:
    if name is None:
        return TrainConfig()
    from flatclr.checks import require_one_of

    require_one_of("recipe", name, RECIPES)
    return RECIPES[name]()


def _number(flag: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{flag} must be a number, got {text!r}; say 10, or +5 with --resume.") from None


def _views(text: str) -> dict[str, Any]:
    """The setting that --views means: a number of drawn views, or which halves."""
    word, colon, how = text.partition(":")
    if word == "halves":
        return {"halves": how if colon else HALVES[0]}
    if not text.isdecimal():
        raise ValueError(f"--views must be a whole number, or halves, got {text!r}; say 2, or halves:left-right.")
    return {"views_per_image": int(text)}


def _targets(text: str) -> float | list[list[float]]:
    try:
        if ":" not in text:
            return float(text)
        return [[float(number) for number in point.split(":")] for point in text.split(",")]
    except ValueError:
        raise ValueError(
            f"--ess-target must be a number or EPOCH:TARGET,EPOCH:TARGET, got {text!r}; say 0.25 or 0:0.5,20:0.2."
        ) from None
