"""``driftgate pretrain`` and ``driftgate import-checkpoint``: where source models come from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftgate.lab.cli import options
from driftgate.lab.cli.app import app
from driftgate.lab.cli.console import duration, note, output, percent, print_json, progress_bars, refuse

if TYPE_CHECKING:
    from driftgate.lab.pretrain import PretrainReport
    from driftgate.models import SourceModel


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The recipe, where it is not the data set's own: fields of ``PretrainSettings``."""

    epochs: int | None = options.option(None, "The data set's own if not given.", min=1)
    lr: float | None = options.option(None, "Learning rate; the data set's own if not given.")
    backbone_norm: str | None = options.option(
        None,
        "Batch norm of the backbone: batch, or running to keep the pretrained statistics (small data sets); "
        "the data set's own if not given.",
    )
    batch_size: int = options.option(64, min=2)
    held_out: float = options.option(0.0, "Share of each class kept out of training to measure accuracy on.")
    precision: options.Precision = None
    seed: options.Seed = 0


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """The network to train, and where."""

    backbone: str = options.option("lite0", "cnn (small pictures), lite0, resnet50, resnet50-v1, or timm/<any>.")
    input_size: options.InputSize = None
    weights: options.Weights = None
    device: options.Device = "auto"


@options.command(
    app,
    epilog="Example: [bold]driftgate pretrain --data pacs --root data/pacs --source art_painting --shift OPDA "
    "--backbone lite0 --input-size 112 --out art.safetensors[/bold]",
)
def pretrain(
    *,
    data: options.DataOptions,
    source: Annotated[list[str], typer.Option(help="Source domain; repeat it to use several as one.")],
    out: Annotated[Path, typer.Option(help="File for the trained model (.safetensors).")],
    network: NetworkOptions,
    recipe: TrainingOptions,
    workers: options.Workers = 1,
    strict: options.Strict = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a training that was stopped.")] = False,
    checkpoint_every: options.CheckpointEvery = options.CHECKPOINT_SECONDS,
    as_json: options.AsJson = False,
) -> None:
    """Train a source model with the paper's recipe: label smoothing, SGD, a falling learning rate.

    The model file carries input size, normalisation, class names and the statistics that some methods need.
    """
    from driftgate.lab.cli import experiment
    from driftgate.lab.files import writable_file
    from driftgate.lab.pretrain import PretrainSettings
    from driftgate.lab.pretrain import pretrain as train
    from driftgate.models import SourceModel
    from driftgate.models.backbones import check_backbone, check_weights

    check_backbone(network.backbone)
    check_weights(network.backbone, network.weights)
    stopped = out.with_name(f"{out.name}.progress.safetensors")
    writable_file(out)
    experiment.progress_file(stopped, resume)
    dataset, classes = experiment.open_split(data)
    domains = [dataset.domain(name, seed=recipe.seed) for name in experiment.split_names(source)]
    settings = PretrainSettings.for_dataset(dataset.name, **asdict(recipe))
    size = None if network.input_size is None else (network.input_size, network.input_size)
    names = experiment.source_class_names(dataset, classes)
    model = SourceModel.build(network.backbone, names, seed=recipe.seed, input_size=size, weights=network.weights).to(
        experiment.choose_device(network.device)
    )
    described: dict[str, Any] = {
        "data": data.data,
        "source": [domain.name for domain in domains],
        "shift": classes.shift.value,
        "split": str(classes),
        "class_order": classes.order,
        "backbone": network.backbone,
        "settings": settings.model_dump(mode="json"),
    }
    with experiment.resumable(stopped, out):
        with progress_bars() as report:
            result = train(
                model,
                domains,
                classes,
                settings,
                workers=workers,
                strict=strict,
                on_step=lambda step: report("source training", step.step, step.steps),
                checkpoint=stopped,
                checkpoint_every=checkpoint_every,
            )
        model.save(out)
    _write_card_and_print(model, out, described, result, as_json=as_json)


def _write_card_and_print(
    model: SourceModel, out: Path, described: dict[str, Any], result: PretrainReport, *, as_json: bool
) -> None:
    """Write the card, and say how it went."""
    from driftgate.lab.model_card import write_card

    sources, held = ", ".join(described["source"]), result.held_out_accuracy
    facts = {
        "trained on": f"{described['data']}: {sources}, {result.samples:,} images",
        "class split": f"{described['shift']} {described['split']} ({described['class_order']})",
        "accuracy, last epoch": f"{percent(result.accuracy)} %",
        "accuracy, held out": "not measured" if held is None else f"{percent(held)} %",
        "training time": duration(result.seconds),
    }
    card = write_card(model, out, facts, described["settings"])
    if as_json:
        print_json({**described, "out": str(out), **asdict(result)})
        return
    told = "" if held is None else f", {percent(held)} % on what was held out"
    output.print(
        f"{model.num_classes} classes of {sources}: accuracy {percent(result.accuracy)} % in the last epoch{told}; "
        f"{result.samples:,} images, {result.steps:,} steps, {duration(result.seconds)} on {model.mean.device}.",
        markup=False,
    )
    if result.skipped:
        note(f"{len(result.skipped)} images could not be read, the first is {result.skipped[0]}.")
    output.print(f"Written to {out}, its card to {card}.", markup=False, soft_wrap=True)


@options.command(
    app,
    name="import-checkpoint",
    epilog="Example: [bold]driftgate import-checkpoint source_ckpt.pt --out source.safetensors --data visda "
    "--root data/visda --shift OPDA[/bold]",
)
def import_checkpoint(
    *,
    checkpoint: Annotated[Path, typer.Argument(help="source_ckpt.pt as the released code of GMM and COMET writes it.")],
    out: Annotated[Path, typer.Option(help="File for the model (.safetensors).")],
    class_names: Annotated[str | None, typer.Option(help="Names of the source classes, separated by commas.")] = None,
    data: options.DataOptions,
    as_json: options.AsJson = False,
) -> None:
    """Turn a source model of the paper's authors into one of ours; nothing in the file is executed.

    The file holds no class names; without --class-names or --data they are called class 0, class 1 and so on, and
    adapt will refuse data sets that call them otherwise.
    """
    from driftgate.lab.cli.experiment import open_split, source_class_names
    from driftgate.lab.files import writable_file
    from driftgate.lab.model_card import write_card
    from driftgate.models.import_checkpoint import import_checkpoint as read

    if class_names is not None and data.data is not None:
        refuse("Expected --class-names or --data but got both; give one of them.")
    writable_file(out)
    names = None if class_names is None else tuple(name.strip() for name in class_names.split(","))
    if data.data is not None:
        names = source_class_names(*open_split(data))
    model = read(checkpoint, names)
    model.save(out)
    write_card(model, out, {"imported from": checkpoint.name, "class names from": data.data or "the command line"}, {})
    if as_json:
        print_json({"out": str(out), "model": model.spec.model_dump(mode="json")})
    else:
        output.print(
            f"{model.num_classes} classes, {model.spec.backbone}. Written to {out}.", markup=False, soft_wrap=True
        )
