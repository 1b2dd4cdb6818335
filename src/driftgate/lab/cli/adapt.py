"""``driftgate adapt``: one method over one stream."""

from __future__ import annotations

from collections.abc import Mapping

from driftgate.lab.cli import options
from driftgate.lab.cli.app import app
from driftgate.lab.cli.console import refuse


@options.command(
    app,
    epilog="Example: [bold]driftgate adapt --model art.safetensors --data pacs --root data/pacs --target photo "
    "--shift OPDA --method gmm --set p_reject=0.25 --out runs/photo[/bold]",
)
def adapt(
    *,
    chosen: options.MethodOptions,
    pictures: options.PictureOptions,
    data: options.DataOptions,
    stream: options.StreamOptions,
    precision: options.Precision = None,
    run: options.RunOptions,
) -> None:
    """Stream a target domain, or a plain folder of pictures, through a model: predict, learn, batch by batch.

    Labels of the target only score. The record holds settings, versions, seed, metrics with their definitions, time
    and memory. With --images nobody has labels: --predictions gets a row a picture, and the record tells shares and
    losses.
    """
    from driftgate.lab.cli.experiment import make_choice
    from driftgate.lab.files import writable_file, writable_folder

    choice = make_choice(chosen, seed=run.seed, **({"precision": precision} if precision else {}))
    if run.save is not None:
        writable_file(run.save)
    if run.out is not None:
        writable_folder(run.out)
    if pictures.images is None:
        from driftgate.lab.cli.adapt_domains import adapt_domains

        given = {"follow": pictures.follow or None, "idle": pictures.idle, "predictions": pictures.predictions}
        _refuse(given, "without --images")
        adapt_domains(choice, data, stream, run)
        return
    from driftgate.lab.cli.adapt_images import adapt_images

    labelled: dict[str, object] = {
        **{"data": data.data, "root": data.root, "shift": data.shift, "split": data.split},
        **{"target": stream.target, "limit": stream.limit, "guard": stream.guard or None},
    }
    _refuse(labelled, "with --images, which has no labels")
    if pictures.predictions is not None:
        writable_file(pictures.predictions)
    adapt_images(choice, pictures.images, pictures, run, data.max_pixels)


def _refuse(given: Mapping[str, object], where: str) -> None:
    """Refuse options that were given and would be passed over in silence."""
    names = [name for name, value in given.items() if value is not None]
    if names:
        refuse(f"Expected no --{', --'.join(names)} {where}; leave it out.")
